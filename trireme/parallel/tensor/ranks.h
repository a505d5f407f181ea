#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::tensor {

/// The ranks that split the layers of one model: an axis of the mesh. Default: one rank.
struct Ranks {
  comm::Group group = {};
  /// Between the split layers each rank has T/N of a sample's T tokens instead of all: norms, residuals and dropout
  /// need 1/N of the memory.
  bool sequence_parallel = false;

  bool alone() const { return group.size() == 1; }
  bool splits_sequence() const { return sequence_parallel && !alone(); }
};

/// The dim of [B, T, H] that is split over the ranks if the sequence is split.
inline constexpr int64_t kSequenceDim = 1;

/// The input of a layer that is split by columns: [B, T, H] from x [B, T, H], or from [B, T/N, H] if the sequence is
/// split.
at::Tensor enter(const at::Tensor& x, const Ranks& ranks);
/// Sums the ranks' addends [B, T, H], the output of a layer that is split by rows: [B, T, H], or [B, T/N, H] if the
/// sequence is split.
at::Tensor leave(const at::Tensor& x, const Ranks& ranks);

/// Elements [begin, end) of a dim of `size` elements that rank `rank` of `ranks` has. Parts differ by at most one
/// element; the first ones are larger.
struct RankRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};
RankRange part_of(int64_t size, int rank, int ranks);
inline RankRange part_of(int64_t size, const Ranks& ranks) {
  return part_of(size, ranks.group.rank(), ranks.group.size());
}

/// All-gathers the last dim, whose parts part_of() cuts from `size`: logits over the full vocabulary. Backward takes
/// this rank's part of the gradient. Cost: P(N-1)/N sent by each rank for P bytes.
at::Tensor join_last_dim(const at::Tensor& x, int64_t size, const Ranks& ranks);

} // namespace trireme::tensor
