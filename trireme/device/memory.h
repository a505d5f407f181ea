#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace trireme::device {

/// What tensors of this process hold of a device's memory, bytes, as libtorch's allocator counts it: without what the
/// allocator keeps for later, and without the driver's and other libraries' own (NCCL's buffers, the context of CUDA).
struct MemoryUse {
  int64_t bytes = 0; ///< now
  int64_t peak = 0;  ///< the most so far
};

/// Returns nothing for the CPU, and for a device whose allocator keeps no count. No wait for the device.
std::optional<MemoryUse> memory_use(at::Device device);

} // namespace trireme::device
