#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::context {

/// Tokens of [B, A, t, D] or [B, A, t].
struct Range {
  int64_t begin, length;
  at::Tensor of(const at::Tensor& x) const {
    return begin == 0 && length == x.size(2) ? x : x.narrow(2, begin, length);
  }
};

/// A block of queries against a block of keys: q [B, A, t, D], k and v [B, K, s, D], K divides A.
struct Block {
  at::Tensor q, k, v;
  /// Query i sees keys 0 to i; then s == t.
  bool causal = false;
  /// [B, s] bool, true for keys that may be seen, or undefined.
  at::Tensor key_padding = {};
  double dropout = 0;
  /// Selects the weights that dropout drops.
  uint64_t seed = 0;
  /// Causal: query i sees keys i - window + 1 to i; 0: keys 0 to i.
  int64_t window = 0;
};

/// Softmax over this block's keys alone. Result out [B, A, t, D] is in q's type or the type of sums (fp32, fp64 for
/// double). Result lse [B, A, t] is in the type of sums: log sum exp of the scores, -inf if a query sees no key (then
/// out is 0).
struct BlockResult {
  at::Tensor out, lse;
};
BlockResult forward(const Block& block);

/// Adds a block's softmax to that of other keys, in place: out += (out_b - out) sigmoid(lse_b - lse), lse = log(e^lse +
/// e^lse_b). `may_be_empty`: some queries may see no key in either.
void merge(const at::Tensor& out, const at::Tensor& lse, const BlockResult& block, bool may_be_empty);

/// A block's addend to the gradients of the full attention. `out` and `lse` are the full attention's for these queries,
/// dout is its gradient. In q's type or that of sums.
struct BlockGradients {
  at::Tensor q, k, v;
};
BlockGradients backward(const Block& block, const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse);

/// fp64 for double, else fp32.
at::ScalarType type_of_sums(const at::Tensor& x);

} // namespace trireme::context
