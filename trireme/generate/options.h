#pragma once

#include <cstdint>
#include <vector>

namespace trireme::generate {

/// How the next token is chosen from the logits. The steps and their order are those of Hugging Face's transformers.
struct Choice {
  /// Divides the logits; 0: always the most likely token, and the three limits below do not count.
  double temperature = 0.8;
  /// Only this many of the most likely tokens; 0: all.
  int64_t top_k = 0;
  /// Only the most likely tokens whose probabilities together reach this (nucleus: Holtzman et al. 2019,
  /// arXiv:1904.09751); 1: all.
  double top_p = 1;
  /// Only tokens at least this many times as likely as the most likely one; 0: all.
  double min_p = 0;
  /// Divides positive logits of tokens that the text has, and multiplies negative ones (Keskar et al. 2019,
  /// arXiv:1909.05858); 1: none.
  double repetition_penalty = 1;
};

struct SampleOptions {
  /// Tokens added to each text, at most.
  int64_t tokens = 200;
  Choice choice = {};
  /// The text of prompt i draws from a generator with this plus i (modulo 2^64): it does not depend on the other
  /// prompts.
  int64_t seed = 0;
  /// Only ids below it are chosen: those of the tokenizer, where the model's vocabulary is padded. 0: all.
  int64_t vocab_size = 0;
  /// A text ends with any of these.
  std::vector<int32_t> end_tokens = {};
};

} // namespace trireme::generate
