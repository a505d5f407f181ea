#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/options.h>
#include <trireme/parallel/tensor/layers.h>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace trireme::tensor {

struct ParallelAttentionOptions {
  int64_t hidden = 0;
  /// Heads of the queries.
  int64_t heads = 0;
  /// Heads of keys and values, each for heads / kv_heads heads of the queries, neighbours (grouped queries). 0: as many
  /// as `heads`; 1: multi-query.
  int64_t kv_heads = 0;
  /// Features of a head. 0: hidden / heads.
  int64_t head_size = 0;
  /// Whether a token sees those before it and itself alone.
  bool causal = true;
  /// Whether the four projections have one.
  bool bias = false;
  /// Probability that a weight of the softmax is dropped in training; other weights on each tensor rank, since it has
  /// other heads.
  double dropout = 0;
  /// The ranks that share the tokens of each sample, by default nobody, and how attention sees those of others
  /// (context/attention.h).
  comm::Group context = {};
  context::Kind context_kind = context::Kind::ring;
};

/// Self-attention, N tensor ranks having 1/N of the heads each. B samples, T tokens (of the context rank), A heads of
/// the queries and K of keys and values.
///
/// Parameters have the names of Hugging Face's llama: q_proj [A D, hidden], k_proj and v_proj [K D, hidden], split by
/// columns, o_proj [hidden, A D], split by rows. N divides A. Where N divides K, each rank has K/N heads of keys and
/// values. Where K divides N, N/K ranks compute each a part of the features of the head that they share, and exchange
/// them: no weight is there twice. Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries).
///
/// Cost: one exchange of x and one of the result, as column_linear() and row_linear() have it, and where ranks share a
/// head an all-gather of all keys and values, 2 B T K D (N-1)/N elements sent by each rank forward, and as many
/// backward. Kept for backward: x, queries, keys, values, the mixed values, a float a query and head. First values do
/// not depend on N (layers.h).
class ParallelAttentionImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for numbers that do not divide.
  explicit ParallelAttentionImpl(const ParallelAttentionOptions& options, const Ranks& ranks = {});

  /// x [B, T, hidden], or [B, T/N, hidden] where the sequence is split -> the same shape. key_padding [B, T] bool, true
  /// where there is a token, or undefined; not if causal.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_padding = {});

  /// What this rank's heads of the queries need: q [B, A/N, T, D], k and v [B, K/N or 1, T, D].
  struct Heads {
    at::Tensor q, k, v;
  };
  /// The parts of forward(): o_proj(mix(project(x))). In between a model turns q and k by their positions.
  Heads project(const at::Tensor& x);
  /// [B, T, A/N D]. q and k may have a wider type than v, by factors in fp32: they are converted to v's.
  at::Tensor mix(const Heads& heads, const at::Tensor& key_padding = {});

  const ParallelAttentionOptions& options() const {
    return options_;
  }

  ColumnParallelLinear q_proj{nullptr};
  ColumnParallelLinear k_proj{nullptr};
  ColumnParallelLinear v_proj{nullptr};
  RowParallelLinear o_proj{nullptr};

 private:
  ParallelAttentionOptions options_;
  Ranks ranks_;
};
TORCH_MODULE(ParallelAttention);

} // namespace trireme::tensor
