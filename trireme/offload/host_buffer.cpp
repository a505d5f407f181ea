#include <trireme/offload/host_buffer.h>

#include <trireme/aio/memory.h>

#include <ATen/ops/from_blob.h>

#include <atomic>

namespace trireme::offload {

struct HostBuffer::Memory {
  explicit Memory(int64_t bytes) : bytes(bytes) {}

  aio::Memory bytes;
  std::atomic<int> tensors{0};
};

HostBuffer::HostBuffer(int64_t bytes) : memory_(std::make_shared<Memory>(bytes)) {}

std::byte* HostBuffer::data() const {
  return memory_->bytes.data();
}

int64_t HostBuffer::size() const {
  return memory_->bytes.size();
}

at::Tensor HostBuffer::view(int64_t begin, int64_t numel, at::ScalarType type) const {
  memory_->tensors.fetch_add(1, std::memory_order_relaxed);
  const auto let_go = [memory = memory_](void*) { memory->tensors.fetch_sub(1, std::memory_order_release); };
  return at::from_blob(data() + begin, {numel}, let_go, at::TensorOptions(type));
}

// What the last tensor's thread has read of it has been read.
bool HostBuffer::is_held() const {
  return memory_->tensors.load(std::memory_order_acquire) > 0;
}

} // namespace trireme::offload
