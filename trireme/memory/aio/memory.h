#pragma once

#include <trireme/memory/aio/options.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace trireme::aio {

/// Memory for transfers: zeroed, aligned to kAlignment; from 2 MiB on it asks for huge pages. Movable, not copyable.
/// Forked processes do not have it.
class Memory {
 public:
  Memory() = default;
  /// `bytes` is rounded up to a multiple of kAlignment. Pages are allocated when first touched. Errors: Error with the
  /// size and the system's reason.
  explicit Memory(int64_t bytes);
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Memory();

  /// nullptr if the size is 0.
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

} // namespace trireme::aio
