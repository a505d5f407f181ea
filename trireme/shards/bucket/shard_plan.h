#pragma once

#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::bucket {

/// Rank `rank`'s equal part of a bucket that `size` ranks share; the bucket divides by `size`.
Range shard_of(const Bucket& bucket, int rank, int size);

/// Says which slice of which bucket each rank owns: everything on every rank
/// (ZeRO stage 0), or rank r's equal part of each bucket (stages 1 to 3).
///
/// What a rank owns of a buffer is also stored contiguously in its optimizer states:
/// bucket after bucket, bucket b from state_offset(b).
/// Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.
class ShardPlan {
 public:
  ShardPlan() = default;
  /// Throws Error when sharded and a bucket does not divide by `size` (make the layout with shards = size).
  ShardPlan(const FlatLayout& layout, int rank, int size, bool sharded);

  bool sharded() const {
    return sharded_;
  }
  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  /// What `rank` owns of bucket `bucket`.
  Range range(int64_t bucket, int rank) const;
  Range mine(int64_t bucket) const {
    return range(bucket, rank_);
  }
  int64_t state_offset(int64_t bucket) const {
    return state_offset_[bucket];
  }
  /// Elements of one optimizer state on this rank.
  int64_t state_numel() const {
    return state_offset_.back();
  }

 private:
  std::vector<Bucket> buckets_;
  int rank_ = 0;
  int size_ = 1;
  bool sharded_ = false;
  std::vector<int64_t> state_offset_;
};

} // namespace trireme::bucket
