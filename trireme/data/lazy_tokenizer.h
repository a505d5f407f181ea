#pragma once

#include <trireme/data/tokenizer.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace trireme::data {

/// A tokenizer that is read when it is first used: a run whose tokens are cached may only need it for its samples.
class LazyTokenizer final : public Tokenizer {
 public:
  /// `spec`: as make_tokenizer(); `vocab_size` and `hash` (tokenizer_hash()) are known already.
  LazyTokenizer(std::string spec, int64_t vocab_size, uint64_t hash)
      : spec_(std::move(spec)), vocab_size_(vocab_size), hash_(hash) {}

  // Errors of the first use: those of make_tokenizer(); InputError if its files are others than those of the hash.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const override;
  std::vector<int32_t> encode_with_threads(std::string_view text, int threads) const override;
  bool is_local() const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::string describe() const override;

 private:
  const Tokenizer& opened() const;

  std::string spec_;
  int64_t vocab_size_;
  uint64_t hash_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<const Tokenizer> opened_;
};

} // namespace trireme::data
