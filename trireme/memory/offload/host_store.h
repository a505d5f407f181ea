#pragma once

#include <trireme/shards/bucket/state_store.h>

#include <memory>

namespace trireme::offload {

/// Keeps the arrays of buffers on a device in its host's memory, pinned or not, where they are stepped; those of
/// buffers on the CPU are in memory as ever.
///
/// Memory: the arrays, packed into blocks of up to 256 MiB, each a power of two: libtorch's allocator of pinned memory
/// rounds up to one.
std::unique_ptr<bucket::StateStore> make_host_store(bool pinned);

/// Share `ratio` (0 to 1) of the elements of each buffer on a device is in `moved`, the rest on the device: whole
/// buckets, from the first on, which have their gradients first; a bucket is moved where its middle lies within the
/// share. The same buckets in every run with the same layout. Buffers on the CPU are in `moved`. Source:
/// ZeRO-Offload++'s twin flow (DeepSpeed's "ratio").
std::unique_ptr<bucket::StateStore> make_partial_store(std::unique_ptr<bucket::StateStore> moved, double ratio);

} // namespace trireme::offload
