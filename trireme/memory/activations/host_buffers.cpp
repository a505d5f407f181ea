#include <trireme/memory/activations/host_buffers.h>

#include <trireme/device/stream.h>
#include <trireme/memory/aio/memory.h>

#include <ATen/ops/from_blob.h>

namespace trireme::activations {

at::Tensor HostBuffer::tensor(int64_t bytes) const {
  if (pinned_.defined()) {
    return pinned_.narrow(0, 0, bytes);
  }
  return at::from_blob(data_, {bytes}, at::TensorOptions(at::kByte));
}

HostBuffers::~HostBuffers() {
  free_spare(0);
}

std::shared_ptr<HostBuffer> HostBuffers::take(int64_t bytes) {
  const int64_t size = aio::round_up(bytes);
  std::unique_ptr<HostBuffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ += size;
    if (const auto found = spare_.find(size); found != spare_.end()) {
      buffer = std::move(found->second);
      spare_.erase(found);
      spare_bytes_ -= size;
    } else {
      free_spare(most_ - used_bytes_);
    }
  }
  if (!buffer) {
    if (device_ == at::kCPU) {
      auto memory = std::make_shared<aio::Memory>(size);
      std::byte* const data = memory->data();
      buffer = std::make_unique<HostBuffer>(std::move(memory), at::Tensor(), data, size);
      ledger_->add(size);
    } else {
      at::Tensor pinned = device::pinned_pages(size, device_);
      auto* const begin = static_cast<std::byte*>(pinned.mutable_data_ptr());
      buffer = std::make_unique<HostBuffer>(nullptr, std::move(pinned), begin, size);
    }
  }
  return {buffer.release(),
          [pool = shared_from_this()](HostBuffer* back) { pool->come_back(std::unique_ptr<HostBuffer>(back)); }};
}

void HostBuffers::set_most(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  most_ = bytes;
  free_spare(most_ - used_bytes_);
}

void HostBuffers::come_back(std::unique_ptr<HostBuffer> buffer) {
  const std::lock_guard lock(mutex_);
  const int64_t size = buffer->size();
  used_bytes_ -= size;
  spare_bytes_ += size;
  spare_.emplace(size, std::move(buffer));
  free_spare(most_ - used_bytes_);
}

void HostBuffers::free_spare(int64_t down_to) {
  while (!spare_.empty() && spare_bytes_ > down_to) {
    const int64_t size = spare_.begin()->first;
    spare_.erase(spare_.begin());
    spare_bytes_ -= size;
    if (device_ == at::kCPU) {
      ledger_->remove(size);
    }
  }
}

} // namespace trireme::activations
