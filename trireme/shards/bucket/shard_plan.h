#pragma once

#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::bucket {

/// Rank `rank`'s equal part of a bucket that `size` ranks share; `size` divides the bucket.
Range shard_of(const Bucket& bucket, int rank, int size);

/// Which slice of which bucket each rank owns: everything on every rank (ZeRO stage 0), or rank r's equal part of each
/// bucket (stages 1 to 3).
///
/// Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5.
class ShardPlan {
 public:
  ShardPlan() = default;
  /// Throws Error if sharded and `size` does not divide a bucket (make the layout with shards = size).
  ShardPlan(const FlatLayout& layout, int rank, int size, bool sharded);

  bool sharded() const { return sharded_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The slice of bucket `bucket` that `rank` owns.
  Range range(int64_t bucket, int rank) const;
  Range mine(int64_t bucket) const { return range(bucket, rank_); }

 private:
  std::vector<Bucket> buckets_;
  int rank_ = 0;
  int size_ = 1;
  bool sharded_ = false;
};

} // namespace trireme::bucket
