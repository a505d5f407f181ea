#pragma once

#include <trireme/shards/bucket/state_store.h>

#include <memory>

namespace trireme::offload {

/// Keeps the arrays of buffers on a device in host memory, pinned or not, where they are stepped. Arrays of buffers on
/// the CPU are in ordinary memory.
///
/// Memory: the arrays, packed into blocks of up to 256 MiB, each a power of two, because libtorch's allocator of pinned
/// memory rounds up to one.
std::unique_ptr<bucket::StateStore> make_host_store(bool pinned);

/// Puts share `ratio` (0 to 1) of the elements of each buffer on a device into `moved`; the rest stays on the device.
/// Only complete buckets are moved, from the first on, because their gradients come first: those whose middle lies
/// within the share. Every run with the same layout moves the same buckets. Buffers on the CPU are always in `moved`.
/// Source: ZeRO-Offload++'s twin flow (DeepSpeed's "ratio").
std::unique_ptr<bucket::StateStore> make_partial_store(std::unique_ptr<bucket::StateStore> moved, double ratio);

} // namespace trireme::offload
