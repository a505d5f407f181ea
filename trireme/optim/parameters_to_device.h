#pragma once

#include <trireme/device/host_buffer.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::optim {

/// Pinned buffers into which the host writes new parameters. They are copied to the device on a separate stream while
/// the host steps the next bucket.
///
/// Host memory: `pieces` times the largest piece. One thread at a time.
class ParametersToDevice {
 public:
  ParametersToDevice(at::Device device, bool pinned, size_t pieces)
      : device_(device), pinned_for_(pinned ? device.type() : at::kCPU), pieces_(pieces) {}

  /// [numel], uninitialised. Blocks while the buffer taken `pieces` calls ago is still being copied.
  at::Tensor take(int64_t numel, at::ScalarType type);
  /// Copies `from`, which take() returned, to `to` on the device: after the work on the current stream, which waits for
  /// the copy. The host does not wait.
  void send(const at::Tensor& from, const at::Tensor& to);

 private:
  at::Device device_;
  at::DeviceType pinned_for_;
  device::KeptStreams streams_;
  std::vector<device::HostBuffer> pieces_;
  size_t next_ = 0;
};

} // namespace trireme::optim
