#pragma once

#include "capture.h"
#include "guard.h"
#include "timeline.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace trireme::sim {

inline bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::kPrivateUse1;
}

/// The tensor as a kernel finds it: a tensor of the CPU on the other mapping. Resizable, because an out argument may
/// come in another shape; the caller sees that it has moved.
at::Tensor kernel_view(const at::Tensor& tensor);

/// The same memory without a share in it, as a graph has it. What the host has by value stays as it is now, unless it
/// is in pinned memory, which is read in each replay.
at::Tensor recorded(const at::Tensor& tensor);
/// The same for the tensors of a value.
c10::IValue recorded(const c10::IValue& value);

/// A kernel that runs on the current stream of a device, checked argument by argument.
class Launch {
 public:
  Launch(std::string name, int device) : name_(std::move(name)), stream_(clock_of(device, current_stream(device))) {
    if (is_captured(stream_)) {
      recorded_ = record_launch(name_);
    } else {
      refuse_in_capture(name_ + " on a stream that is not captured");
    }
    if (!is_replaying()) {
      timeline().launch(name_, stream_);
    }
  }
  bool is_recorded() const { return recorded_ != nullptr; }
  /// Runs in each replay.
  void repeats(std::function<void()> work) const { recorded_->work = std::move(work); }
  void touch(const at::Tensor& tensor, bool writes, bool between_devices = false) const {
    if (!on_device(tensor) || tensor.numel() == 0) {
      return;
    }
    int64_t span = 1;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      span += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    timeline().touch(name_, stream_, begin, begin + static_cast<size_t>(span) * tensor.element_size(), writes,
                     between_devices);
  }
  void host_waits(const std::string& what) const {
    if (is_recorded()) {
      refuse_capture_of(what);
    }
    timeline().host_waits(timeline().now(stream_), what);
  }
  int stream() const { return stream_; }

 private:
  std::string name_;
  int stream_;
  std::shared_ptr<RecordedLaunch> recorded_;
};

} // namespace trireme::sim
