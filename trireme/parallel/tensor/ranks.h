#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::tensor {

/// The ranks that share the work of each layer of one model: an axis of the mesh. By default one rank alone.
struct Ranks {
  comm::Group group = {};
  /// Between the split layers each rank has T/N of a sample's T tokens instead of all: norms, residuals and dropout
  /// cost 1/N of the memory.
  bool sequence_parallel = false;

  bool alone() const {
    return group.size() == 1;
  }
  bool splits_sequence() const {
    return sequence_parallel && !alone();
  }
};

/// The dim of [B, T, H] whose parts the ranks have where the sequence is split.
inline constexpr int64_t kSequenceDim = 1;

/// What a layer that is split by columns computes with: [B, T, H] from x [B, T, H], or [B, T/N, H] where the sequence
/// is split.
at::Tensor enter(const at::Tensor& x, const Ranks& ranks);
/// Turns what a layer that is split by rows computes, [B, T, H], of which each rank has a summand, into the sum: [B, T,
/// H], or [B, T/N, H].
at::Tensor leave(const at::Tensor& x, const Ranks& ranks);

/// Elements [begin, end) of a dim of `size` elements that rank `rank` of `ranks` has. Parts differ by one element at
/// most, the first ones are larger.
struct Part {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const {
    return end - begin;
  }
};
Part part_of(int64_t size, int rank, int ranks);
inline Part part_of(int64_t size, const Ranks& ranks) {
  return part_of(size, ranks.group.rank(), ranks.group.size());
}

/// Parts of the last dim, as part_of() cuts `size`, side by side again: logits over the whole vocabulary. Backward
/// takes this rank's part of the gradient. Cost: P(N-1)/N sent by each rank for P bytes.
at::Tensor join_last_dim(const at::Tensor& x, int64_t size, const Ranks& ranks);

} // namespace trireme::tensor
