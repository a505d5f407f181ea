#pragma once

#include <trireme/comm/algorithms/cost.h>
#include <trireme/comm/group.h>

namespace trireme::comm {

/// One rank's part in an all-reduce, counted during it.
struct Traffic {
  /// Blocks sent, received or both at once; cost() has the formula.
  int64_t steps = 0;
  /// Messages sent. A block that is added on arrival is sent in segments of 256 KiB, so that adding one overlaps the
  /// transfer of the next.
  int64_t messages = 0;
  int64_t bytes_sent = 0;
};

/// All-reduces `tensor` in place by send and recv of `group`, so over any backend, and returns when done. Every rank of
/// the group calls the same one with the same sizes. Steps, bytes and literature: cost.h.
///
/// float, double, half, bfloat16 and integers on CPU. All ranks end with the same bits. A sum of half or bfloat16 is
/// added in float and rounded before each hop: at most N - 1 times, where Group::all_reduce over shm rounds once.
/// Memory: at most 512 KiB besides the tensor. Errors: as Group's.
Traffic all_reduce_ring(const Group& group, at::Tensor tensor, ReduceOp op = ReduceOp::sum);
Traffic all_reduce_tree(const Group& group, at::Tensor tensor, ReduceOp op = ReduceOp::sum);
Traffic all_reduce_halving_doubling(const Group& group, at::Tensor tensor, ReduceOp op = ReduceOp::sum);
Traffic all_reduce_naive(const Group& group, at::Tensor tensor, ReduceOp op = ReduceOp::sum);

/// Runs the algorithm that `algorithm` names.
Traffic all_reduce(Algorithm algorithm, const Group& group, at::Tensor tensor, ReduceOp op = ReduceOp::sum);

} // namespace trireme::comm
