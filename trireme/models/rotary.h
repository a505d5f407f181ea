#pragma once

#include <trireme/models/options.h>
#include <trireme/models/ranks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace trireme::models {

/// The angles per position of each pair of features of a head, fp32 [head_dim / 2], and the factor of their cosines and
/// sines, with the formulas of Hugging Face's transformers. `length`: tokens of the sequence, on which RopeScaling's
/// `dynamic` depends if they exceed max_positions; there each length has its own frequencies, whatever came before.
/// Sources: Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071 (yarn).
struct RotaryFrequencies {
  at::Tensor angles;
  double factor = 1;
};
RotaryFrequencies rotary_frequencies(const LlamaOptions& options, int64_t length);

/// Cosines and sines of the positions of a sequence, shared by all layers of a model: computed when the length or the
/// device changes. Tables that training has used stay where they are, because a recorded step reads them. Safe on
/// several threads.
class RotaryPositions {
 public:
  RotaryPositions(const LlamaOptions& options, const ModelRanks& ranks);

  struct Table {
    at::Tensor cos, sin; ///< fp32 [tokens, head_dim / 2]
  };
  /// Of the `tokens` tokens that this context rank has of a sequence.
  Table of(int64_t tokens, const at::Device& device) const;
  /// Of these positions, int64 [N], of sequences of at most `length` tokens: [N, head_dim / 2].
  Table of(const at::Tensor& positions, int64_t length) const;

 private:
  Table compute(int64_t tokens, const at::Device& device) const;
  /// 0: frequencies do not depend on the length.
  int64_t scaled_length(int64_t length) const;

  LlamaOptions options_;
  ModelRanks ranks_;
  mutable std::mutex mutex_;
  struct Kept {
    Table table;
    int64_t scaled_length;
    bool trains = false; // a forward with gradients has used it
  };
  mutable std::vector<Kept> kept_;
};

} // namespace trireme::models
