#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/token_cache/labelled_cache.h>
#include <trireme/data/tokenize/stop.h>
#include <trireme/data/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {

/// Texts with a label each, from files of JSON lines: {"text": "...", "label": 2} or {"text": "...", "label": "good"}.
/// Other keys and empty lines are skipped.
///
/// Batches: tokens [B, L] and a mask [B, L] (bool, true for real tokens); target [B] (int64). A text gets the
/// tokenizer's special tokens ([CLS], [SEP]), is cut to L tokens with them, and padded with "[PAD]" or 0. Labels that
/// are names are numbered in the order of `names`. Memory: 4 bytes per token. Errors: InputError naming file, line and
/// what was found: another JSON, a missing key, numbers and names mixed, a label >= classes, an unknown name, or a text
/// without tokens.
class LabelledText : public Dataset {
 public:
  struct Options {
    std::vector<std::filesystem::path> files{};
    int64_t sequence_length = 128;
    int64_t classes = 2;
    /// Names of the classes, or none if labels are numbers; absent: as the files have them, names in the order of their
    /// bytes.
    std::optional<std::vector<std::string>> names = std::nullopt;
    /// Asked for each text; the constructor throws Error once it returns true.
    Stop stop = nullptr;
  };
  LabelledText(const Options& options, const Tokenizer& tokenizer);
  /// Texts that were tokenized before, with the names of their labels.
  LabelledText(const Options& options, const Tokenizer& tokenizer, LabelledTokens texts);

  int64_t size() const override { return static_cast<int64_t>(texts_.labels.size()); }
  Batch get(std::span<const int64_t> indices) const override { return get_part(indices, Part::all); }
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  std::string describe() const override;

  /// Empty if labels are numbers.
  const std::vector<std::string>& names() const { return names_; }
  const LabelledTokens& texts() const { return texts_; }

 private:
  std::string source_;
  int64_t sequence_length_;
  int32_t pad_ = 0;
  LabelledTokens texts_;
  std::vector<std::string> names_;
};

/// The id of a token that the tokenizer knows by this text; nullopt if it has none.
std::optional<int32_t> token_of(const Tokenizer& tokenizer, const std::string& text);

} // namespace trireme::data
