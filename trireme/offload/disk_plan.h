#pragma once

#include <trireme/bucket/state_store.h>

#include <cstdint>
#include <vector>

namespace trireme::offload {

/// Where the arrays of a flat buffer lie in their file: bucket after bucket, so that a bucket is one transfer, and in
/// each the parts of its arrays, every one from a multiple of aio::kAlignment on (a block of the file system: what is
/// copied by reference has whole ones).
///
/// The bucket is what is moved at a time, so DeepSpeed's sub_group_size, the elements it steps at a time, has no
/// meaning here: "reduce_bucket_size" bounds a bucket, and at ZeRO stage 3 a unit's parameters do. A parameter larger
/// than that is a bucket by itself, of which each rank moves its shard.
struct DiskPlan {
  struct Bucket {
    int64_t offset = 0;          ///< in the file
    int64_t bytes = 0;           ///< of all parts, each filled up to whole blocks
    std::vector<int64_t> begins; ///< of each array's part, from `offset` on
    int64_t elements = 0;        ///< of all parts
  };
  std::vector<Bucket> buckets;
  int64_t bytes = 0; ///< of the file

  /// `needs_place(bucket)`: whether the bucket is in the file at all; one that is not has no bytes.
  DiskPlan(const std::vector<bucket::StoredArray>& arrays,
           const std::function<bool(const Bucket& bucket)>& needs_place);
};

} // namespace trireme::offload
