#pragma once

#include <trireme/device/stream.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace trireme::device {

/// Host memory for copies to and from files and devices: whole pages, pinned for a device. Move-only. Tensors on it
/// share its ownership and may be freed on any thread.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// `bytes` is rounded up to whole pages; not initialised if pinned, else zeroed. `pinned_for`: devices of this kind
  /// copy from it asynchronously.
  explicit HostBuffer(int64_t bytes, at::DeviceType pinned_for = at::kCPU);
  HostBuffer(HostBuffer&&) = default;
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(used_until_, other.used_until_);
    return *this;
  }
  /// Waits until it is idle.
  ~HostBuffer();

  std::byte* data() const;
  int64_t size() const;
  /// [numel], from byte `begin` on.
  at::Tensor tensor(int64_t numel, at::ScalarType type = at::kByte, int64_t begin = 0) const;
  /// Whether any tensor on it is left.
  bool is_held() const;

  /// Records that a device uses it until `event`, which comes after the events given before.
  void used_until(std::shared_ptr<const Event> event) { used_until_ = std::move(event); }
  /// True once the device has passed that event.
  bool is_idle() const { return !used_until_ || used_until_->done(); }
  /// Blocks until the device has passed it.
  void wait_until_idle();

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<const Event> used_until_;
};

/// Allocates buffers and keeps returned ones for the next request of their size, once no device uses them. Thread-safe.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  /// `count` is called with the bytes of each buffer that is allocated, and with their negative when it is freed.
  explicit HostPool(at::DeviceType pinned_for, std::function<void(int64_t bytes)> count = nullptr)
      : pinned_for_(pinned_for), count_(std::move(count)) {}
  ~HostPool() { take_surplus(0); }

  /// At least `bytes`. It is returned with the last copy of the pointer.
  std::shared_ptr<HostBuffer> take(int64_t bytes);
  /// Limits the bytes of buffers in use and spare ones; spare ones are freed first. Default: no limit.
  void set_most(int64_t bytes);

 private:
  using Buffers = std::vector<std::unique_ptr<HostBuffer>>;

  void give_back(std::unique_ptr<HostBuffer> buffer);
  // Spare buffers beyond `most` bytes. To be freed without the mutex: that may wait for a device.
  Buffers take_surplus(int64_t most);

  const at::DeviceType pinned_for_;
  const std::function<void(int64_t)> count_;
  std::mutex mutex_;
  std::multimap<int64_t, std::unique_ptr<HostBuffer>> spare_;
  int64_t spare_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t most_ = std::numeric_limits<int64_t>::max();
};

} // namespace trireme::device
