#pragma once

#include <trireme/bucket/shard_plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::bucket {

/// Gradients of which only this rank's shard stays (ZeRO stages 2 and 3): a bucket has memory from its first gradient until it
/// has been reduced and settle() has taken its shard out of it.
///
/// Memory: numel / ranks, and the buckets under way; their memory is used again by later ones.
class GradientShards {
 public:
  using Allocate = std::function<at::Tensor(int64_t, at::ScalarType)>;
  GradientShards(const FlatLayout& layout, const ShardPlan& plan, at::ScalarType type, Allocate allocate);

  const ShardPlan& plan() const {
    return plan_;
  }
  /// The bucket's memory, [bucket numel], gaps zero; taken when there is none yet.
  at::Tensor bucket(int64_t b);
  /// Adds this rank's slice of the reduced bucket to what it has of this step, and gives the memory back.
  void settle(int64_t b);
  /// This rank's gradients of bucket `b`, or the part of them that is `range` of the flat buffer.
  at::Tensor owned(int64_t b, const Range& range) const;
  /// A new step begins: what was there does not count any more.
  void start_over();

 private:
  const FlatLayout& layout_;
  ShardPlan plan_;
  at::ScalarType type_;
  Allocate allocate_;
  at::Tensor shard_; // [plan.state_numel()]
  std::vector<bool> begun_;
  std::vector<at::Tensor> under_way_; // by bucket, perhaps longer than it
  std::vector<at::Tensor> spare_;
};

} // namespace trireme::bucket
