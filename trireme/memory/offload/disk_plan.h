#pragma once

#include <trireme/shards/bucket/state_store.h>

#include <cstdint>
#include <vector>

namespace trireme::offload {

/// Where the arrays of a flat buffer lie in their file: bucket after bucket, so that a bucket is one transfer, and in
/// each the parts of its arrays, every one from a multiple of aio::kAlignment on (a block of the file system: what is
/// copied by reference has whole ones).
///
/// A bucket here is what moves at a time: a chunk of a flat buffer's bucket (kChunkElements) for masters, states and
/// the CPU's gradients, the bucket for parameters and a GPU's gradients. DeepSpeed's sub_group_size, the elements that
/// it steps at a time, has no effect.
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
