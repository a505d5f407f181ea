#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>

namespace trireme::activations {

/// Ranks that have the same inputs of parts: the tensor ranks of a stage without sequence parallelism. Each keeps a
/// share of an input of a recomputed part, and all gather it when its backward begins. This divides memory by the
/// number of ranks, for an all-gather of the inputs per backward. Source: Rajbhandari et al. 2020, "ZeRO"
/// (arXiv:1910.02054), section 6.1, partitioned activation checkpointing.
struct Sharing {
  int64_t rank = 0;
  int64_t ranks = 1;
  /// Fills `whole` with the shares of all ranks in order; both are bytes on the computing device. Collective: ranks
  /// gather in the same order, because they have the same graph.
  std::function<void(const at::Tensor& whole, const at::Tensor& share)> gather;
};

/// Copies this rank's share to new memory: share_of() bytes; those of the last ranks end in zeros.
at::Tensor cut_share(const Sharing& sharing, const c10::Storage& storage);
/// The sum of its 64-bit words, on the storage's device: detects whether ranks had the same bytes.
at::Tensor checksum_of(const c10::Storage& storage, int64_t bytes);

} // namespace trireme::activations
