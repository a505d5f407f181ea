#pragma once

#include <trireme/device/stream.h>

#include <memory>
#include <mutex>
#include <vector>

namespace trireme::comm {

/// Pinned host memory of one backend for copies from and to devices. Buffers return when their Loan ends, and are
/// reused once the device has done the last copy that uses them. Thread-safe.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(at::DeviceType device) : device_(device) {}

  /// A buffer in use.
  class Loan {
   public:
    Loan() = default;
    Loan(std::shared_ptr<PinnedPool> pool, at::Tensor buffer) : pool_(std::move(pool)), buffer_(std::move(buffer)) {}
    Loan(Loan&&) = default;
    Loan& operator=(Loan&& other) noexcept;
    ~Loan();

    /// The first `numel` elements of that type.
    at::Tensor view(int64_t numel, at::ScalarType type) const;
    /// Sets the copy after which the memory is free.
    void used_until(std::shared_ptr<device::Event> event) {
      last_use_ = std::move(event);
    }

   private:
    void give_back() noexcept;

    std::shared_ptr<PinnedPool> pool_;
    at::Tensor buffer_;
    std::shared_ptr<device::Event> last_use_;
  };
  Loan take(int64_t bytes);

  /// Number of buffers created so far.
  int64_t made() const;

 private:
  struct Free {
    at::Tensor buffer;
    std::shared_ptr<device::Event> last_use;
  };

  const at::DeviceType device_;
  mutable std::mutex mutex_;
  std::vector<Free> free_;
  int64_t made_ = 0;
};

} // namespace trireme::comm
