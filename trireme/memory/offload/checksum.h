#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::offload {

/// XXH3-64 of pieces of 1 MiB, and of their sums: to find what a disk has changed, not forgery.
/// Cost: one read of the memory by all of libtorch's threads, at the speed of the memory (10 GB/s and more a thread).
/// Source: github.com/Cyan4973/xxHash.
uint64_t checksum(const void* data, size_t bytes);

} // namespace trireme::offload
