#pragma once

#include <trireme/models/language_model.h>

#include <cstdint>
#include <vector>

namespace trireme::generate {

struct SampleOptions {
  int64_t tokens = 200;
  /// Divides the logits; 0: always the most likely token.
  double temperature = 0.8;
  /// Samples from this many of the most likely tokens; 0: from all.
  int64_t top_k = 0;
  int64_t seed = 0;
  /// Only ids below it are chosen: those of the tokenizer, where the model's vocabulary is padded. 0: all.
  int64_t vocab_size = 0;
};

/// Returns `prompt` and its continuation by options.tokens tokens. An empty prompt starts from token 0. The model sees
/// at most the last sequence_length tokens of the text. Cost: one forward pass over that window per token. Errors:
/// InputError for a prompt token outside the vocabulary.
std::vector<int32_t> sample(const models::LanguageModel& model, std::vector<int32_t> prompt,
                            const SampleOptions& options);

} // namespace trireme::generate
