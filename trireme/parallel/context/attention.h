#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/options.h>

#include <ATen/core/Tensor.h>

namespace trireme::context {

struct AttentionOptions {
  Kind kind = Kind::ring;
  bool causal = true;
  /// Probability that a weight of the softmax is dropped.
  double dropout = 0;
};

/// softmax(Q K^T / sqrt(D)) V over the whole sequence, whose tokens the ranks share as sequence.h says: q [B, A, t, D],
/// k and v [B, K, t, D] with K dividing A (grouped queries), t = T/N this rank's tokens -> [B, A, t, D]. Collective:
/// every rank of the group calls it with the same shapes and options, and its backward too. Any strides; on the CPU,
/// without dropout, the result lies in memory as [B, t, A, D], as the next projection wants it. On a card the group
/// must have been opened for messages (Group::open with Neighbours::ring).
///
/// key_padding [B, t] bool, true where there is a token, of this rank's tokens: other keys get no weight; not with
/// `causal`. A query that sees no key gives 0.
///
/// ring: keys and values go round, the next block on its way while the present one is computed; blocks that the causal
/// mask empties are left out, so that every rank computes T^2 / (2N) scores a head (T^2 / N where all tokens see all).
/// Sums are fp32 (fp64 for double). Kept for backward: q, k, v, the result, a float a query and head. Beside that it
/// holds up to three blocks of K and V, in backward also of their gradients: O(T/N), however long the sequence.
/// Ulysses: each rank gets A/N heads of all tokens, for one all-to-all before and one after; N must divide A. Heads of
/// keys and values that N does not divide are repeated (closed_forms.h), which costs bytes and memory. Its dropout
/// draws from the default generator, which must differ between the ranks. Bytes sent: closed_forms.h. A group of one
/// computes alone.
///
/// The blocks are computed by fused/'s kernels (CPU, fp32 and bf16, no key padding), else by ATen's flash kernels where
/// there are some for this device and type, else, and with dropout, by matrix products over at most 4 Mi scores at a
/// time; never is there a T x T matrix. Forward may run again (recomputation). Errors: InputError for shapes or types
/// that do not fit; Error for derivatives of derivatives (create_graph). Sources: Liu et al. 2023, arXiv:2310.01889
/// (ring); Jacobs et al. 2023, arXiv:2309.14509 (Ulysses); Milakov & Gimelshein 2018, arXiv:1805.02867 (merging
/// softmax).
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                     const AttentionOptions& options, const at::Tensor& key_padding = {});

} // namespace trireme::context
