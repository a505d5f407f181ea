#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace trireme::rpc::grpc {

/// Memory of bodies, zeroed by the kernel. Pages cost nothing until they are written, however long a body a peer
/// announces.
class Memory {
 public:
  /// Errors: std::bad_alloc.
  explicit Memory(size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::calloc(bytes == 0 ? 1 : bytes, 1))) {
    if (data_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

/// Reuses long memory, because the kernel takes as long to clear fresh pages as gRPC to fill them. One thread at a
/// time.
class MemoryPool {
 public:
  std::shared_ptr<Memory> take(size_t bytes) {
    if (bytes < kLong) {
      return std::make_shared<Memory>(bytes);
    }
    std::shared_ptr<Memory>* best = nullptr;
    for (auto& one : all_) {
      const bool fits = one.use_count() == 1 && one->bytes() >= bytes && one->bytes() / 2 <= bytes;
      if (fits && (best == nullptr || one->bytes() < (*best)->bytes())) {
        best = &one;
      }
    }
    if (best != nullptr) {
      std::atomic_thread_fence(std::memory_order_acquire); // pairs with the last owner's release
      return *best;
    }
    if (all_.size() >= kMost) {
      std::erase_if(all_, [](const auto& one) { return one.use_count() == 1; });
    }
    all_.push_back(std::make_shared<Memory>(bytes));
    return all_.back();
  }

 private:
  static constexpr size_t kLong = 64 << 10;
  static constexpr size_t kMost = 64;
  std::vector<std::shared_ptr<Memory>> all_;
};

} // namespace trireme::rpc::grpc
