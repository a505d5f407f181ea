#include <trireme/device/host_buffer.h>

#include <trireme/base/log.h>
#include <trireme/memory/aio/memory.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

namespace trireme::device {
namespace {

// Allocators of pinned memory give whole pages, and a little more may be twice as much: they round up to powers of two.
at::Tensor pinned_pages(int64_t bytes, at::DeviceType device) {
  const auto to_page = [](const at::Tensor& memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory.const_data_ptr());
    return aio::round_up(static_cast<int64_t>(address)) - static_cast<int64_t>(address);
  };
  at::Tensor memory = pinned_host(bytes, at::kByte, device);
  if (to_page(memory) > 0) {
    memory = pinned_host(bytes + aio::kAlignment, at::kByte, device);
  }
  return memory.narrow(0, to_page(memory), bytes);
}

} // namespace

struct HostBuffer::Memory {
  Memory(int64_t bytes, at::DeviceType pinned_for) : size(aio::round_up(bytes)) {
    if (pinned_for == at::kCPU || size == 0) {
      plain = aio::Memory(size);
      begin = plain.data();
    } else {
      pinned = pinned_pages(size, pinned_for);
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

HostBuffer::~HostBuffer() {
  try {
    wait_until_idle();
  } catch (const std::exception& error) { // the device has failed; the error is reported elsewhere
    log::debug("a buffer of the host was not waited for: ", error.what());
  }
}

std::byte* HostBuffer::data() const {
  return memory_ ? memory_->begin : nullptr;
}

int64_t HostBuffer::size() const {
  return memory_ ? memory_->size : 0;
}

at::Tensor HostBuffer::tensor(int64_t numel, at::ScalarType type, int64_t begin) const {
  memory_->tensors.fetch_add(1, std::memory_order_relaxed);
  const auto count_down = [memory = memory_](void*) { memory->tensors.fetch_sub(1, std::memory_order_release); };
  return at::from_blob(data() + begin, {numel}, count_down, at::TensorOptions(type));
}

// What the last tensor's thread has read of it has been read.
bool HostBuffer::is_held() const {
  return memory_ && memory_->tensors.load(std::memory_order_acquire) > 0;
}

void HostBuffer::wait_until_idle() {
  if (const auto event = std::exchange(used_until_, nullptr); event && !event->done()) {
    event->synchronize();
  }
}

std::shared_ptr<HostBuffer> HostPool::take(int64_t bytes) {
  const int64_t size = aio::round_up(bytes);
  std::unique_ptr<HostBuffer> buffer;
  Buffers surplus;
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ += size;
    const auto [first, last] = spare_.equal_range(size);
    if (const auto found = std::find_if(first, last, [](const auto& spare) { return spare.second->is_idle(); });
        found != last) {
      buffer = std::move(found->second);
      spare_.erase(found);
      spare_bytes_ -= size;
    } else {
      surplus = take_surplus(most_ - used_bytes_);
    }
  }
  if (!buffer) {
    surplus.clear();
    buffer = std::make_unique<HostBuffer>(size, pinned_for_);
    if (count_) {
      count_(size);
    }
  }
  buffer->used_until(nullptr);
  return {buffer.release(),
          [pool = shared_from_this()](HostBuffer* back) { pool->give_back(std::unique_ptr<HostBuffer>(back)); }};
}

void HostPool::set_most(int64_t bytes) {
  Buffers surplus;
  const std::lock_guard lock(mutex_);
  most_ = bytes;
  surplus = take_surplus(most_ - used_bytes_);
}

void HostPool::give_back(std::unique_ptr<HostBuffer> buffer) {
  Buffers surplus;
  const std::lock_guard lock(mutex_);
  const int64_t size = buffer->size();
  used_bytes_ -= size;
  spare_bytes_ += size;
  spare_.emplace(size, std::move(buffer));
  surplus = take_surplus(most_ - used_bytes_);
}

HostPool::Buffers HostPool::take_surplus(int64_t most) {
  Buffers surplus;
  while (!spare_.empty() && spare_bytes_ > most) {
    const int64_t size = spare_.begin()->first;
    surplus.push_back(std::move(spare_.begin()->second));
    spare_.erase(spare_.begin());
    spare_bytes_ -= size;
    if (count_) {
      count_(-size);
    }
  }
  return surplus;
}

} // namespace trireme::device
