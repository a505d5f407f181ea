#pragma once

#include <trireme/data/loss_on.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

struct DataOptions;

/// One set of a mixture.
struct MixtureSet {
  /// tokens, text or json_lines; tokenizer, sequence_length, mask and order are the mixture's.
  std::shared_ptr<const DataOptions> data = nullptr;
  /// Above 0; the set's share of all samples is weight / sum of weights.
  double weight = 1;
  /// For messages: "run.json:7:5: data.sets[1]".
  std::string place{};
};

/// The data of a run: files, their samples, and the order of these.
struct DataOptions {
  /// tokens: raw little-endian files of 16-bit (or 32-bit) tokens; text: text files and a tokenizer; json_lines: lines
  /// with a text, a prompt or a conversation; labelled_text: lines with a text and a label; images: IDX (MNIST) files;
  /// mixture: samples of several sets in fixed shares; of_program: samples that a program makes, only their order is
  /// here.
  enum class Kind { tokens, text, json_lines, labelled_text, images, mixture, of_program };
  Kind kind = Kind::text;

  /// Several files are concatenated.
  std::vector<std::filesystem::path> train{};
  /// Empty: no validation data, or for text the last `validation_fraction` of `train`.
  std::vector<std::filesystem::path> validation{};

  // tokens, text, json_lines, labelled_text
  /// Tokens of one input; a sample reads one more for the last target.
  int64_t sequence_length = 128;
  /// Tokens >= this value are refused; 0: the tokenizer's size, if there is one. A tokenizer must not be
  /// larger.
  int64_t vocab_size = 0;

  // tokens
  /// Bytes of a token: 2 or 4. 0: 2, and what does not look so is refused (tokens.h).
  int64_t token_bytes = 0;
  // tokens, json_lines
  /// Samples tell apart the documents in them (TokensDataset).
  bool pack = false;

  // tokens, text, json_lines, labelled_text
  /// "bytes", a Hugging Face tokenizer.json, or a folder with vocab.json and merges.txt; see tokenizer.h.
  /// Empty: "bytes" for text and lines, none for tokens, which need one only to be converted to text.
  std::string tokenizer{};

  // tokens, text, json_lines, for a model that predicts masked tokens (masked_tokens.h)
  /// Share of the tokens of each sample that are predicted; 0: the next token is.
  double mask_fraction = 0;
  /// The token that replaces most of them; -1: the tokenizer's "[MASK]" or "<mask>", for "bytes" 256.
  int64_t mask_token = -1;

  // text
  /// Share of the text's bytes, in [0, 1), kept for validation when `validation` is empty.
  double validation_fraction = 0;

  // json_lines
  /// Which tokens of prompts and conversations count in the loss.
  LossOn loss_on = LossOn::response;
  /// A file, or the name of a template in the tokenizer's folder; empty: that folder's default one.
  std::string chat_template{};
  /// For messages: "run.json:7:5: data.chat_template".
  std::string chat_template_place{};

  // images
  /// One file of labels for each file of images, in the same order.
  std::vector<std::filesystem::path> train_labels{};
  std::vector<std::filesystem::path> validation_labels{};
  /// Pixels become (pixel / 255 - mean) / std.
  double mean = 0;
  double std = 1;

  // images, labelled_text
  /// Labels >= this value are refused; 0: not checked.
  int64_t classes = 0;

  // mixture
  std::vector<MixtureSet> sets{};

  // order; validation data is always read in order and to its end
  bool shuffle = true;
  /// true: drops the last, incomplete global micro-batch; false: fills it up from the epoch's start.
  bool drop_last = true;
  int64_t seed = 1234;
  /// Micro-batches that the loader's thread prefetches; 0: none.
  int64_t prefetch = 2;

  bool has_validation() const {
    const auto has = [](const MixtureSet& set) { return set.data->has_validation(); };
    return !validation.empty() || validation_fraction > 0 || std::ranges::any_of(sets, has);
  }
};

} // namespace trireme::data
