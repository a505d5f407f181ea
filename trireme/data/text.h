#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/text_bytes.h>
#include <trireme/data/token_cache/text_cache.h>
#include <trireme/data/tokenizer.h>
#include <trireme/data/tokens.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Text as tokens, split into samples like TokensDataset: in memory (2 bytes each if they fit, else 4), or mapped from
/// a cache. Errors: InputError for fewer than sequence_length + 1 tokens.
class TextDataset : public Dataset {
 public:
  /// `source` names the text in messages.
  TextDataset(std::string_view text, const Tokenizer& tokenizer, int64_t sequence_length, std::string source);

  /// Text that was tokenized before. `in_use` keeps its shards.
  TextDataset(const CachedText::Split& cached, std::shared_ptr<const Descriptor> in_use, int64_t sequence_length,
              std::string source);

  int64_t size() const override { return size_; }
  Batch get(std::span<const int64_t> indices) const override;
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  /// Unknown for text in memory.
  uint64_t checksum() const override { return mapped_ ? mapped_->checksum() : 0; }
  std::string describe() const override;

  int64_t num_tokens() const;
  /// Converts a loss from nats per token to nats per byte (divide by it).
  double bytes_per_token() const;
  /// The cross entropy, in nats per byte, of this text's bytes under their frequencies in `train`: the loss of a model
  /// that knows only how often each byte occurs (for `train` itself: its entropy). Each of the 256 counts is increased
  /// by one, so an unseen byte has a finite loss.
  double unigram_entropy_per_byte(const TextDataset& train) const;

 private:
  template <typename Token>
  void read(const std::vector<Token>& tokens, int64_t start, std::span<int64_t> out) const;

  std::string source_;
  int64_t sequence_length_;
  int64_t size_ = 0;
  TextBytes bytes_;
  // In memory one of these has the tokens, else the files.
  std::vector<uint16_t> narrow_;
  std::vector<int32_t> wide_;
  std::optional<TokensDataset> mapped_;
  std::shared_ptr<const Descriptor> in_use_;
};

/// Concatenates text files, with gzip unpacked and without UTF-8's byte order mark. Errors: InputError naming a file
/// that is missing, empty, truncated, packed otherwise, in UTF-16 or not text.
std::string read_texts(const std::vector<std::filesystem::path>& files);

/// The byte where the validation text, the last `fraction` of `text`, begins; never inside a UTF-8 character.
size_t validation_start(std::string_view text, double fraction);

} // namespace trireme::data
