#include <trireme/device/memory.h>

#include <trireme/device/stream.h>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace trireme::device {
namespace {

c10::DeviceAllocator* allocator_of(at::Device device) {
  return device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

} // namespace

std::optional<MemoryUse> memory_use(at::Device device) {
  try {
    auto* const allocator = allocator_of(device);
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

std::optional<DeviceRoom> memory_room(at::Device device) {
  try {
    if (device.is_cuda()) {
      at::globalContext().lazyInitDevice(device.type());
    }
    auto* const allocator = allocator_of(device);
    if (allocator == nullptr || !allocator->initialized()) {
      return std::nullopt;
    }
    const auto [free, total] = allocator->getMemoryInfo(with_index(device).index());
    return DeviceRoom{static_cast<int64_t>(free), static_cast<int64_t>(total)};
  } catch (const c10::Error&) { // not implemented
    return std::nullopt;
  }
}

} // namespace trireme::device
