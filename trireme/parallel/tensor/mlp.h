#pragma once

#include <trireme/parallel/tensor/layers.h>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace trireme::tensor {

struct ParallelMlpOptions {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  /// Whether the three layers have a bias.
  bool bias = false;
};

/// SwiGLU: down_proj(silu(gate_proj(x)) * up_proj(x)), hidden -> intermediate -> hidden. Each tensor rank has a part of
/// `intermediate`, of any size. Parameters have the names of Hugging Face's llama. Source: Shazeer 2020,
/// arXiv:2002.05202.
///
/// Cost: one exchange of x and one of the result, as in column_linear() and row_linear(). Kept for backward: x, gate,
/// up and their product. Initial values do not depend on the number of ranks (layers.h).
class ParallelMlpImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for sizes below 1, or fewer features than ranks.
  explicit ParallelMlpImpl(const ParallelMlpOptions& options, const Ranks& ranks = {});
  /// x [B, T, hidden], or [B, T/N, hidden] if the sequence is split -> the same shape.
  at::Tensor forward(const at::Tensor& x);

  ColumnParallelLinear gate_proj{nullptr};
  ColumnParallelLinear up_proj{nullptr};
  RowParallelLinear down_proj{nullptr};

 private:
  Ranks ranks_;
};
TORCH_MODULE(ParallelMlp);

} // namespace trireme::tensor
