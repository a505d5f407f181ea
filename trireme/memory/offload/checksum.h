#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::offload {

/// XXH3-64 of pieces of 1 MiB, and of their sums. It detects what a disk changed, not forgery. Cost: one read of the
/// memory by all of libtorch's threads, at the memory's speed (10 GB/s and more per thread). Source:
/// github.com/Cyan4973/xxHash.
uint64_t checksum(const void* data, size_t bytes);

} // namespace trireme::offload
