#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::context {

struct AttentionOptions {
  Kind kind = Kind::ring;
  bool causal = true;
  /// Probability that a weight of the softmax is dropped.
  double dropout = 0;
  /// Tokens that a query sees, its own included; 0: all up to it. Only if causal.
  int64_t window = 0;
};

/// softmax(Q K^T / sqrt(D)) V over the full sequence, whose tokens are split among the ranks as in sequence.h. Inputs
/// are q [B, A, t, D], k and v [B, K, t, D], where K divides A (grouped queries) and t = T/N is this rank's number of
/// tokens. Returns [B, A, t, D]. Collective: every rank of the group calls it with the same shapes and options, and its
/// backward too. Any strides. On the CPU without dropout, the result's memory layout is [B, t, A, D], as the next
/// projection needs it. On a GPU the group must have been opened for messages (Group::open with Neighbours::ring).
///
/// key_padding [B, t] bool, true for real tokens, of this rank's tokens: other keys get no weight; not with `causal`. A
/// query that sees no key gives 0.
///
/// A window smaller than the sequence is not available for ring attention over several ranks; computing time does not
/// shrink with it outside of fused/.
///
/// ring: keys and values are passed around the ring; the next block is sent while the present one is computed. Blocks
/// that the causal mask empties are skipped, so every rank computes T^2 / (2N) scores per head (T^2 / N without the
/// mask). Sums are fp32 (fp64 for double). Kept for backward: q, k, v, the result, one float per query and head.
/// Buffers: up to three blocks of K and V, in backward also of their gradients: O(T/N).
///
/// Ulysses: each rank gets A/N heads of all tokens, for one all-to-all before and one after; N must divide A. Heads of
/// keys and values that N does not divide are repeated (closed_forms.h), which costs bytes and memory. Dropout draws
/// from the default generator, which must differ between the ranks. Bytes sent: closed_forms.h. A group of one computes
/// alone.
///
/// Blocks are computed by fused/'s kernels (CPU, fp32 and bf16, no key padding), else by ATen's flash kernels where
/// this device and type have some. Otherwise, and with dropout, they are matrix products over at most 4 Mi scores at a
/// time. No T x T matrix is ever made. Forward may run again (recomputation). Errors: InputError for shapes or types
/// that do not fit; Error for double backward (create_graph). Sources: Liu et al. 2023, arXiv:2310.01889 (ring); Jacobs
/// et al. 2023, arXiv:2309.14509 (Ulysses); Milakov & Gimelshein 2018, arXiv:1805.02867 (merging softmax).
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                     const AttentionOptions& options, const at::Tensor& key_padding = {});

} // namespace trireme::context
