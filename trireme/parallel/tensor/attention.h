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
  /// Heads of keys and values, each used by heads / kv_heads neighbouring heads of the queries (grouped queries). 0: as
  /// many as `heads`; 1: multi-query.
  int64_t kv_heads = 0;
  /// Features of a head. 0: hidden / heads.
  int64_t head_size = 0;
  /// Whether a token sees only itself and earlier ones.
  bool causal = true;
  /// Whether the projections of queries, keys and values have a bias.
  bool bias = false;
  /// Whether the output projection has a bias.
  bool output_bias = false;
  /// Tokens that a token attends to, itself included; 0: all before it. Only if causal; not among several ranks of ring
  /// attention.
  int64_t window = 0;
  /// Probability that a weight of the softmax is dropped in training. Masks differ between tensor ranks, which have
  /// different heads.
  double dropout = 0;
  /// The ranks that split the tokens of each sample (default: none), and how attention reads the tokens of others
  /// (context/attention.h).
  comm::Group context = {};
  context::Kind context_kind = context::Kind::ring;
};

/// Self-attention; each of N tensor ranks has 1/N of the heads. B samples, T tokens (of the context rank), A heads of
/// the queries and K of keys and values.
///
/// Parameters have the names of Hugging Face's llama: q_proj [A D, hidden], k_proj and v_proj [K D, hidden], split by
/// columns, o_proj [hidden, A D], split by rows. N must divide A. If N divides K, each rank has K/N heads of keys and
/// values. If K divides N, N/K ranks share a head: each computes a part of its features, and they exchange them, so no
/// weight is stored twice. Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries).
///
/// Cost: one exchange of x and one of the result, as in column_linear() and row_linear(). If ranks share a head, also
/// an all-gather of all keys and values: each rank sends 2 B T K D (N-1)/N elements forward, and as many backward. Kept
/// for backward: x, queries, keys, values, the mixed values, one float per query and head. Initial values do not depend
/// on N (layers.h).
class ParallelAttentionImpl : public torch::nn::Module {
 public:
  /// Errors: InputError for numbers that do not divide each other as above.
  explicit ParallelAttentionImpl(const ParallelAttentionOptions& options, const Ranks& ranks = {});

  /// x [B, T, hidden], or [B, T/N, hidden] where the sequence is split -> the same shape. key_padding [B, T] bool, true
  /// where there is a token, or undefined; not if causal.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& key_padding = {});

  /// Inputs of this rank's heads of the queries: q [B, A/N, T, D], k and v [B, K/N or 1, T, D].
  struct Heads {
    at::Tensor q, k, v;
  };
  /// The steps of forward(): o_proj(mix(project(x))). Between them a model rotates q and k by their positions.
  Heads project(const at::Tensor& x);
  /// [B, T, A/N D]. q and k may have a wider type than v, from factors in fp32: they are converted to v's.
  at::Tensor mix(const Heads& heads, const at::Tensor& key_padding = {});

  const ParallelAttentionOptions& options() const { return options_; }

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
