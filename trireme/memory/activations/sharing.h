#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>

namespace trireme::activations {

/// Ranks that have the same inputs of parts, the tensor ranks of a stage without sequence parallelism. Of an input of a
/// part that is recomputed each keeps a share, and all gather it when its backward begins: memory / ranks, for an
/// all-gather of the inputs in each backward. Source: Rajbhandari et al. 2020, "ZeRO" (arXiv:1910.02054), section 6.1,
/// partitioned activation checkpointing.
struct Sharing {
  int64_t rank = 0;
  int64_t ranks = 1;
  /// Fills `whole` with the shares of all ranks in their order, both bytes on the device that computes. Collective:
  /// ranks gather in the same order, because they have the same graph.
  std::function<void(const at::Tensor& whole, const at::Tensor& share)> gather;
};

/// This rank's share of memory, in memory of its own: share_of() bytes, of which the last ranks' end in zeros.
at::Tensor cut_share(const Sharing& sharing, const c10::Storage& storage);
/// The sum of its 64-bit words: tells whether ranks had the same. On the storage's device.
at::Tensor checksum_of(const c10::Storage& storage, int64_t bytes);

} // namespace trireme::activations
