#pragma once

#include <trireme/memory/activations/ledger.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace trireme::activations {

class HostBuffers;

/// Memory of the host for one storage that moves: at an address, and of a size, that files can be read into and written
/// from directly.
class HostBuffer {
 public:
  HostBuffer(std::shared_ptr<void> memory, at::Tensor pinned, std::byte* data, int64_t size)
      : memory_(std::move(memory)), pinned_(std::move(pinned)), data_(data), size_(size) {}

  std::byte* data() const {
    return data_;
  }
  int64_t size() const {
    return size_;
  }
  /// The first `bytes` of it as a tensor of bytes.
  at::Tensor tensor(int64_t bytes) const;

 private:
  std::shared_ptr<void> memory_; // of the CPU
  at::Tensor pinned_;            // for a device
  std::byte* data_;
  int64_t size_;
};

/// Makes buffers, and keeps those that come back for the next of their size. For a device they are pinned. Any thread.
class HostBuffers : public std::enable_shared_from_this<HostBuffers> {
 public:
  /// On the CPU the bytes of all buffers, spare ones too, count in `ledger`: they are where the model is.
  HostBuffers(at::DeviceType device, std::shared_ptr<Ledger> ledger) : device_(device), ledger_(std::move(ledger)) {}
  ~HostBuffers();

  /// At least `bytes`. The buffer comes back by itself.
  std::shared_ptr<HostBuffer> take(int64_t bytes);
  /// Buffers in use and spare ones together may have so many bytes, of which those in use come first.
  void set_most(int64_t bytes);

 private:
  void come_back(std::unique_ptr<HostBuffer> buffer);
  void free_spare(int64_t down_to);

  const at::DeviceType device_;
  const std::shared_ptr<Ledger> ledger_;
  std::mutex mutex_;
  std::multimap<int64_t, std::unique_ptr<HostBuffer>> spare_;
  int64_t spare_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t most_ = 0;
};

} // namespace trireme::activations
