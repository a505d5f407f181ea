#pragma once

#include <trireme/shards/bucket/flat_parameters.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// A bucket of one of several buffers.
struct BucketPlace {
  size_t buffer = 0;
  int64_t bucket = 0;
};

/// All buckets in the order in which their gradients should be complete; the buckets of one buffer keep their order. It
/// depends on the layouts alone, so all ranks have the same one.
std::vector<BucketPlace> bucket_order(const std::vector<bucket::FlatParameters*>& buffers);

} // namespace trireme::parallel
