#pragma once

#include <trireme/shards/bucket/state_store.h>

#include <cstdint>
#include <vector>

namespace trireme::offload {

/// Layout of a flat buffer's arrays in their file. Buckets follow one another, so that a bucket is one transfer. Inside
/// a bucket, each array's part begins at a multiple of aio::kAlignment (a block of the file system): copies by
/// reference need full blocks.
///
/// A bucket is the unit of transfers. For masters, states and the CPU's gradients it is a chunk of a flat buffer's
/// bucket (kChunkElements); for parameters and a GPU's gradients it is the flat buffer's bucket. DeepSpeed's
/// sub_group_size, the elements that it steps at a time, has no effect.
struct DiskPlan {
  struct Bucket {
    int64_t offset = 0;          ///< in the file
    int64_t bytes = 0;           ///< of all parts, each padded to full blocks
    std::vector<int64_t> begins; ///< of each array's part, relative to `offset`
    int64_t elements = 0;        ///< of all parts
  };
  std::vector<Bucket> buckets;
  int64_t bytes = 0; ///< of the file

  /// `needs_place(bucket)`: whether the bucket is in the file; one that is not has no bytes.
  DiskPlan(const std::vector<bucket::StoredArray>& arrays,
           const std::function<bool(const Bucket& bucket)>& needs_place);
};

} // namespace trireme::offload
