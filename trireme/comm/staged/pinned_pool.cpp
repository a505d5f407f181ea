#include <trireme/comm/staged/pinned_pool.h>

#include <algorithm>
#include <bit>

namespace trireme::comm {
namespace {

/// Sizes are rounded up to powers of two from this one on, so that buffers fit several tensors.
constexpr int64_t kSmallestBuffer = 4096;

} // namespace

PinnedPool::Loan& PinnedPool::Loan::operator=(Loan&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::move(other.pool_);
    buffer_ = std::move(other.buffer_);
    last_use_ = std::move(other.last_use_);
  }
  return *this;
}

PinnedPool::Loan::~Loan() {
  give_back();
}

void PinnedPool::Loan::give_back() noexcept {
  if (pool_ && buffer_.defined()) {
    try {
      const std::lock_guard lock(pool_->mutex_);
      pool_->free_.push_back({std::move(buffer_), std::move(last_use_)});
    } catch (...) {
      // No memory for the list: the buffer is freed by its allocator, which tracks the copies too.
    }
  }
  pool_.reset();
}

at::Tensor PinnedPool::Loan::view(int64_t numel, at::ScalarType type) const {
  return buffer_.narrow(0, 0, numel * static_cast<int64_t>(c10::elementSize(type))).view(type);
}

PinnedPool::Loan PinnedPool::take(int64_t bytes) {
  const auto size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kSmallestBuffer))));
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const Free& entry) {
      return entry.buffer.numel() == size && (!entry.last_use || entry.last_use->done());
    });
    if (found != free_.end()) {
      Loan loan(shared_from_this(), std::move(found->buffer));
      free_.erase(found);
      return loan;
    }
    ++made_;
  }
  return {shared_from_this(), device::pinned_host(size, at::kByte, device_)};
}

int64_t PinnedPool::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

} // namespace trireme::comm
