#include <trireme/data/lazy_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/data/token_files/tokenizer_hash.h>

namespace trireme::data {

std::vector<int32_t> LazyTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return opened().encode(text, add_special_tokens);
}

std::vector<int32_t> LazyTokenizer::encode_with_threads(std::string_view text, int threads) const {
  return opened().encode_with_threads(text, threads);
}

bool LazyTokenizer::is_local() const {
  return opened().is_local();
}

std::string LazyTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  return opened().decode(ids, skip_special_tokens);
}

std::string LazyTokenizer::describe() const {
  return opened().describe();
}

const Tokenizer& LazyTokenizer::opened() const {
  std::call_once(once_, [this] {
    std::unique_ptr<const Tokenizer> read = make_tokenizer(spec_);
    if (tokenizer_hash(spec_) != hash_) {
      throw InputError("data", concat("the tokenizer ", spec_, " has changed since the data were opened"),
                       "Put the earlier files back, or start a new run.");
    }
    opened_ = std::move(read);
  });
  return *opened_;
}

} // namespace trireme::data
