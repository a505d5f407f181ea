#pragma once

#include <trireme/data/dataset.h>

#include <filesystem>
#include <string>

/// Text as masked-language-model samples of bytes (Devlin et al. 2018, arXiv:1810.04805).
///
/// A sample is a piece of `length` bytes that ends at its last full stop, if one is in its second half; the rest is
/// padding. Masks the same number of bytes in each sample, 15 % of a whole one, so that the mean over a batch is the
/// mean over its micro-batches: 8 of 10 are replaced by a mask token, 1 by any byte, 1 stays. Which ones depends on the
/// sample's number only. Inputs: tokens [B, T] int64 and mask [B, T] bool, true where there is text. Target [B, T]: the
/// byte, or -100 where none is asked for.
class MaskedText : public trireme::data::Dataset {
 public:
  static constexpr int64_t kMask = 256;
  static constexpr int64_t kPadding = 257;
  static constexpr int64_t kVocabSize = 258;

  /// Errors: InputError for a file that cannot be read or is shorter than one sample, or a length below 16.
  MaskedText(const std::filesystem::path& file, int64_t length);

  int64_t size() const override { return static_cast<int64_t>(text_.size()) / length_; }
  trireme::data::Batch get(std::span<const int64_t> indices) const override;
  std::string describe() const override;

 private:
  std::string text_;
  int64_t length_;
  std::string name_;
};
