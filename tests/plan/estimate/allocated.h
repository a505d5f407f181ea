#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace trireme::estimate {

/// Counts bytes of tensors that this process makes, from the construction on; of all threads, the backend's too, which
/// may be the last to hold a message.
class Allocated {
 public:
  Allocated() : before_(counter().now.load()) { restart(); }
  /// most() is that from here on.
  void restart() const { counter().most = counter().now.load(); }
  int64_t now() const { return counter().now - before_; }
  int64_t most() const { return counter().most - before_; }

 private:
  /// libtorch's allocator, counted.
  class Counter final : public c10::Allocator {
   public:
    c10::DataPtr allocate(size_t bytes) override {
      c10::DataPtr data = base_->allocate(bytes);
      void* const place = data.get();
      if (place == nullptr) {
        return data;
      }
      const std::lock_guard lock(mutex_);
      now += static_cast<int64_t>(bytes);
      most = std::max(most.load(), now.load());
      held_[place] = {std::move(data), static_cast<int64_t>(bytes)};
      return {place, place, &release, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
    std::atomic<int64_t> now{0};
    std::atomic<int64_t> most{0};

   private:
    static void release(void* place) {
      Counter& self = counter();
      const std::lock_guard lock(self.mutex_);
      const auto held = self.held_.extract(place);
      if (held.empty()) { // of before the count, or taken past it
        self.base_->raw_deallocate(place);
      } else {
        self.now -= held.mapped().second;
      }
    }
    c10::Allocator* const base_ = c10::GetDefaultCPUAllocator();
    std::mutex mutex_;
    std::unordered_map<void*, std::pair<c10::DataPtr, int64_t>> held_;
  };
  static Counter& counter() {
    static Counter* const one = [] { // lives as long as any tensor
      auto* const made = new Counter;
      c10::SetCPUAllocator(made, /*priority=*/1);
      return made;
    }();
    return *one;
  }

  int64_t before_;
};

} // namespace trireme::estimate
