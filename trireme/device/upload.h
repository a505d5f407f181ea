#pragma once

#include <trireme/device/stream.h>

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace trireme::device {

/// Copies batches to the device on a separate stream, so that the copy of the next micro-batch overlaps the computation
/// of the current one. The current stream waits for the copy; the host does not. Tensors in pinned memory
/// (DataLoader's) are copied directly, others through pinned memory. For the CPU it does nothing.
class Uploader {
 public:
  explicit Uploader(at::Device device = at::kCPU);

  at::Device device() const { return device_; }
  /// The tensor on the device; returned unchanged if it is there.
  at::Tensor upload(const at::Tensor& tensor);
  std::vector<at::Tensor> upload(std::vector<at::Tensor> tensors);

 private:
  void forget_copied();

  at::Device device_;
  std::shared_ptr<KeptStreams> streams_ = std::make_shared<KeptStreams>(); // shared, so that an Uploader can be moved
  std::deque<std::pair<Event, at::Tensor>> sources_;                       // in pinned memory, until they are copied
};

} // namespace trireme::device
