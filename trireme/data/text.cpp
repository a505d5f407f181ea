#include <trireme/data/text.h>

#include <trireme/base/cores.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/plain_text.h>
#include <trireme/base/units.h>
#include <trireme/data/packed.h>
#include <trireme/data/windows.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace trireme::data {

TextDataset::TextDataset(std::string_view text, const Tokenizer& tokenizer, int64_t sequence_length, std::string source)
    : source_(std::move(source)), sequence_length_(sequence_length) {
  bytes_.add(text);
  std::vector<int32_t> tokens = tokenizer.encode_with_threads(text, usable_cores());
  size_ = count_windows(static_cast<int64_t>(tokens.size()), sequence_length, source_);
  if (tokenizer.vocab_size() <= 65536) {
    narrow_.assign(tokens.begin(), tokens.end());
  } else {
    wide_ = std::move(tokens);
  }
}

TextDataset::TextDataset(const CachedText::Split& cached, std::shared_ptr<const Descriptor> in_use,
                         int64_t sequence_length, std::string source)
    : source_(std::move(source)),
      sequence_length_(sequence_length),
      size_(count_windows(cached.tokens, sequence_length, source_)), // names the text in its error
      bytes_(cached.bytes),
      mapped_(std::in_place, cached.shards, sequence_length),
      in_use_(std::move(in_use)) {}

int64_t TextDataset::num_tokens() const {
  return mapped_ ? mapped_->num_tokens() : static_cast<int64_t>(narrow_.size() + wide_.size());
}

template <typename Token>
void TextDataset::read(const std::vector<Token>& tokens, int64_t start, std::span<int64_t> out) const {
  std::copy_n(tokens.begin() + start, out.size(), out.begin());
}

Batch TextDataset::get(std::span<const int64_t> indices) const {
  return get_part(indices, Part::all);
}

Batch TextDataset::get_part(std::span<const int64_t> indices, Part part) const {
  if (mapped_) {
    return mapped_->get_part(indices, part);
  }
  check_indices(indices, size_);
  const auto read_into = [this](int64_t start, std::span<int64_t> out) {
    wide_.empty() ? read(narrow_, start, out) : read(wide_, start, out);
  };
  return gather_windows(indices, sequence_length_, read_into, part);
}

std::string TextDataset::describe() const {
  return concat("text: ", format_count(num_tokens()), " tokens of ", format_bytes(bytes_.total), " in ",
                format_count(size_), " samples of ", sequence_length_, " (", source_, ')');
}

double TextDataset::bytes_per_token() const {
  return static_cast<double>(bytes_.total) / static_cast<double>(num_tokens());
}

double TextDataset::unigram_entropy_per_byte(const TextDataset& train) const {
  double nats = 0;
  for (size_t byte = 0; byte < bytes_.counts.size(); ++byte) {
    const double probability =
        static_cast<double>(train.bytes_.counts[byte] + 1) / static_cast<double>(train.bytes_.total + 256);
    nats -= static_cast<double>(bytes_.counts[byte]) * std::log(probability);
  }
  return nats / static_cast<double>(bytes_.total);
}

std::string read_texts(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) {
    throw InputError("data", "no text files given");
  }
  std::string text;
  for (const auto& file : files) {
    const std::string part = plain_text("data", file.string(), unpack(read_file(file), file.string()));
    if (part.empty()) {
      throw InputError("data", concat(file.string(), " is empty"), "Name files with text in them.");
    }
    text += part;
  }
  return text;
}

size_t validation_start(std::string_view text, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    throw InputError("data", concat("validation_fraction must be at least 0 and below 1, got ", fraction));
  }
  size_t start = text.size() - static_cast<size_t>(static_cast<double>(text.size()) * fraction);
  while (start < text.size() && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) {
    ++start;
  }
  return start;
}

} // namespace trireme::data
