#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// What a run reads: files, how they become samples, and in which order they come.
struct DataOptions {
  /// tokens: raw little-endian uint16 files; text: text files and a tokenizer; images: IDX (MNIST) files.
  enum class Kind { tokens, text, images };
  Kind kind = Kind::text;

  /// Several files count as one after the other.
  std::vector<std::filesystem::path> train{};
  /// Empty: no validation data, or for text the last `validation_fraction` of `train`.
  std::vector<std::filesystem::path> validation{};

  // tokens, text
  /// Tokens of one input; a sample reads one more for the last target.
  int64_t sequence_length = 128;
  /// A token of at least this value is refused; 0: what the tokenizer has, if there is one. A tokenizer must not have more.
  int64_t vocab_size = 0;

  /// "bytes", a Hugging Face tokenizer.json, or a folder with vocab.json and merges.txt; see tokenizer.h.
  /// Empty: "bytes" for text, none for tokens, which need one only to become text again.
  std::string tokenizer{};

  // text
  /// Share of the text's bytes, in [0, 1), kept for validation when `validation` is empty.
  double validation_fraction = 0;

  // images
  /// One file of labels for each file of images, in the same order.
  std::vector<std::filesystem::path> train_labels{};
  std::vector<std::filesystem::path> validation_labels{};
  /// Pixels become (pixel / 255 - mean) / std.
  double mean = 0;
  double std = 1;
  /// A label of at least this value is refused; 0: not checked.
  int64_t classes = 0;

  // order; validation data is always read in order and to its end
  bool shuffle = true;
  /// true: leave out the last, incomplete global micro-batch; false: fill it up from the epoch's start.
  bool drop_last = true;
  int64_t seed = 1234;
  /// Micro-batches made ahead by the loader's thread; 0: none, made when asked for.
  int64_t prefetch = 2;
};

} // namespace trireme::data
