#include <trireme/device/memory.h>

#include <trireme/device/stream.h>

#include <c10/core/CachingDeviceAllocator.h>

namespace trireme::device {

std::optional<MemoryUse> memory_use(at::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  try {
    auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    if (allocator == nullptr || !allocator->initialized()) {
      return std::nullopt;
    }
    const auto stats = allocator->getDeviceStats(with_index(device).index());
    const auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    return MemoryUse{bytes.current, bytes.peak};
  } catch (const c10::Error&) { // not implemented
    return std::nullopt;
  }
}

} // namespace trireme::device
