#pragma once

#include <trireme/device/stream.h>

#include <memory>
#include <mutex>
#include <vector>

namespace trireme::comm {

/// Host memory of one backend for copies from and to devices. Buffers go back when their Loan ends and are lent again
/// once the device has done the last copy that uses them. Any thread may call it.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(at::DeviceType device) : device_(device) {}

  /// A buffer that is lent.
  class Loan {
   public:
    Loan() = default;
    Loan(std::shared_ptr<PinnedPool> pool, at::Tensor buffer) : pool_(std::move(pool)), buffer_(std::move(buffer)) {}
    Loan(Loan&&) = default;
    Loan& operator=(Loan&& other) noexcept;
    ~Loan();

    /// The first `numel` elements of that type.
    at::Tensor view(int64_t numel, at::ScalarType type) const;
    /// Names the copy after which the memory is free.
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

  /// Buffers that were ever made.
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
