#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace trireme::device {

/// Bytes of a device's memory in this process's tensors, as libtorch's allocator counts them. The allocator's cache is
/// not included, nor is memory of the driver and of other libraries (NCCL's buffers, the CUDA context).
struct MemoryUse {
  int64_t bytes = 0; ///< now
  int64_t peak = 0;  ///< the most so far
};

/// Returns nullopt for the CPU, and for a device whose allocator does not count. Does not wait for the device.
std::optional<MemoryUse> memory_use(at::Device device);

/// Memory of a device, for all processes.
struct DeviceRoom {
  int64_t free_bytes = 0; ///< without what this process has: tensors, the allocator's cache, the context
  int64_t bytes = 0;      ///< of the device
};

/// Returns nullopt for the CPU, and for a device whose allocator does not report it. Makes the device's context, which
/// takes some hundred MB, if there is none.
std::optional<DeviceRoom> memory_room(at::Device device);

} // namespace trireme::device
