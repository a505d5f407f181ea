#pragma once

#include <trireme/config/compression_options.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>

namespace trireme::estimate {

/// Bytes that one of `ranks` sends in a compressed mean of all buckets of a layout (compress::BucketMean).
int64_t compressed_bytes(const bucket::FlatLayout& layout, const compress::GradientCompressionOptions& by,
                         int64_t ranks);

} // namespace trireme::estimate
