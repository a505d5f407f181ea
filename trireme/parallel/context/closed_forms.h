#pragma once

#include <trireme/parallel/context/options.h>

#include <algorithm>
#include <cstdint>

// The cost of context parallelism, as formulas; no torch.

namespace trireme::context {

/// The shape of one call of attention() on a rank.
struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t tokens = 1; ///< this rank's
  int64_t head_size = 1;
  int64_t element_bytes = 4;
  bool key_padding = false;
};

/// Heads of keys and values that `ranks` ranks exchange with Kind::ulysses. If `ranks` divides kv_heads: kv_heads.
/// Otherwise heads are repeated: one for each rank if kv_heads divides `ranks`, else one for each head of the
/// queries.
inline int64_t exchanged_kv_heads(int64_t heads, int64_t kv_heads, int ranks) {
  return kv_heads % ranks == 0 ? kv_heads : ranks % kv_heads == 0 ? ranks : heads;
}

/// Bytes that a rank sends in one forward. ring: its K and V, and those of all ranks but two: (N - 1) blocks. Ulysses:
/// (N - 1) / N of q, k, v and of the result. Key padding adds one byte per token to each block (ring), or an all-gather
/// (Ulysses).
inline int64_t forward_bytes(Kind kind, int ranks, const AttentionShape& shape) {
  const int64_t head = shape.batch * shape.tokens * shape.head_size * shape.element_bytes;
  const int64_t padding = shape.key_padding ? shape.batch * shape.tokens * (ranks - 1) : 0;
  if (kind == Kind::ring) {
    return (ranks - 1) * 2 * shape.kv_heads * head + padding;
  }
  return (ranks - 1) * (2 * shape.heads + 2 * exchanged_kv_heads(shape.heads, shape.kv_heads, ranks)) * head / ranks +
         padding;
}

/// Bytes that a rank sends in one backward. ring: K and V once more, followed by their gradients in fp32 (fp64 for
/// double): (N - 1) blocks of both. A rank's gradient of its own block is not sent. Ulysses: as forward, without the
/// padding.
inline int64_t backward_bytes(Kind kind, int ranks, const AttentionShape& shape) {
  AttentionShape without = shape;
  if (kind == Kind::ulysses) {
    without.key_padding = false;
    return forward_bytes(kind, ranks, without);
  }
  AttentionShape gradients = without;
  gradients.key_padding = false;
  gradients.element_bytes = std::max<int64_t>(4, shape.element_bytes);
  return forward_bytes(kind, ranks, shape) + forward_bytes(kind, ranks, gradients);
}

} // namespace trireme::context
