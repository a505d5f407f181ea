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

/// Host memory for one storage that is moved. Its address and size allow direct transfers of files.
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
  /// Its first `bytes` bytes as a tensor of bytes.
  at::Tensor tensor(int64_t bytes) const;

 private:
  std::shared_ptr<void> memory_; // for the CPU
  at::Tensor pinned_;            // for a device
  std::byte* data_;
  int64_t size_;
};

/// Pool of buffers: reuses released ones of the same size. Pinned for a device. Thread-safe.
class HostBuffers : public std::enable_shared_from_this<HostBuffers> {
 public:
  /// On the CPU `ledger` counts the bytes of all buffers, spare ones included: they are in the memory of the model.
  HostBuffers(at::DeviceType device, std::shared_ptr<Ledger> ledger) : device_(device), ledger_(std::move(ledger)) {}
  ~HostBuffers();

  /// At least `bytes`. The buffer returns to the pool when it is released.
  std::shared_ptr<HostBuffer> take(int64_t bytes);
  /// Limits the bytes of buffers in use and spare ones; spare ones are freed first.
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
