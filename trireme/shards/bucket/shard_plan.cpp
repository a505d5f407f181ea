#include <trireme/shards/bucket/shard_plan.h>

#include <trireme/base/error.h>

namespace trireme::bucket {

Range shard_of(const Bucket& bucket, int rank, int size) {
  const int64_t part = bucket.numel() / size;
  return {bucket.begin + part * rank, bucket.begin + part * (rank + 1)};
}

ShardPlan::ShardPlan(const FlatLayout& layout, int rank, int size, bool sharded)
    : buckets_(layout.buckets()), rank_(rank), size_(size), sharded_(sharded && size > 1) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (sharded_ && buckets_[b].numel() % size_ != 0) {
      throw Error("bucket", concat("bucket ", b, " has ", buckets_[b].numel(), " elements, which ", size_,
                                   " ranks cannot share evenly; the layout was made for ", layout.options().shards));
    }
  }
}

Range ShardPlan::range(int64_t bucket, int rank) const {
  const Bucket& whole = buckets_[bucket];
  return sharded_ ? shard_of(whole, rank, size_) : Range{whole.begin, whole.end};
}

} // namespace trireme::bucket
