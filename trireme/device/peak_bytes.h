#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>
#include <map>

namespace trireme::device {

/// Most bytes of the CPU's tensors at a time since it was made, while it is set as c10's DebugInfoKind::PROFILER_STATE
/// of the thread: of this thread and the threads of its backward.
class PeakBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* memory, int64_t size, size_t, size_t, c10::Device) override {
    if (size > 0) {
      sizes_[memory] = size;
      now_ += size;
    } else if (const auto found = sizes_.find(memory); found != sizes_.end()) { // not what was there before
      now_ -= found->second;
      sizes_.erase(found);
    }
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  std::map<void*, int64_t> sizes_;
  int64_t now_ = 0, peak_ = 0;
};

} // namespace trireme::device
