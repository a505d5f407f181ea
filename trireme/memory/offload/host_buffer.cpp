#include <trireme/memory/offload/host_buffer.h>

#include <trireme/device/stream.h>
#include <trireme/memory/aio/memory.h>

#include <ATen/ATen.h>

#include <atomic>

namespace trireme::offload {

struct HostBuffer::Memory {
  Memory(int64_t bytes, at::DeviceType pinned_for) : size(aio::round_up(bytes)) {
    if (pinned_for == at::kCPU || size == 0) {
      plain = aio::Memory(size);
      begin = plain.data();
    } else {
      pinned = device::pinned_pages(size, pinned_for).zero_(); // padding is written to the file too
      begin = static_cast<std::byte*>(pinned.mutable_data_ptr());
    }
  }

  aio::Memory plain;
  at::Tensor pinned;
  std::byte* begin;
  int64_t size;
  std::atomic<int> tensors{0};
};

HostBuffer::HostBuffer(int64_t bytes, at::DeviceType pinned_for)
    : memory_(std::make_shared<Memory>(bytes, pinned_for)) {}

std::byte* HostBuffer::data() const {
  return memory_->begin;
}

int64_t HostBuffer::size() const {
  return memory_->size;
}

at::Tensor HostBuffer::view(int64_t begin, int64_t numel, at::ScalarType type) const {
  memory_->tensors.fetch_add(1, std::memory_order_relaxed);
  const auto let_go = [memory = memory_](void*) { memory->tensors.fetch_sub(1, std::memory_order_release); };
  return at::from_blob(data() + begin, {numel}, let_go, at::TensorOptions(type));
}

// Acquires: reads by the last tensor's thread are done.
bool HostBuffer::is_held() const {
  return memory_->tensors.load(std::memory_order_acquire) > 0;
}

} // namespace trireme::offload
