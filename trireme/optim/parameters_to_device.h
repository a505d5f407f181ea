#pragma once

#include <trireme/device/stream.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::optim {

/// Pinned memory in which the host writes new parameters, and their way back to the device: on a stream of their own,
/// while the host steps the next bucket.
///
/// Memory of the host: `pieces` times the largest piece. One thread at a time.
class ParametersToDevice {
 public:
  ParametersToDevice(at::Device device, bool pinned, size_t pieces);

  /// [numel], not initialised. Blocks while what was taken `pieces` times ago is still being copied.
  at::Tensor take(int64_t numel, at::ScalarType type);
  /// Copies what take() gave, `to` a tensor on the device: after all that is on the current stream, which goes on when
  /// the copy is there. The host does not wait.
  void send(const at::Tensor& from, const at::Tensor& to);

 private:
  struct Piece {
    at::Tensor memory; // bytes; undefined before its first use
    device::Event sent;
  };

  at::Device device_;
  at::DeviceType pinned_for_;
  device::KeptStreams streams_;
  std::vector<Piece> pieces_;
  size_t next_ = 0;
};

} // namespace trireme::optim
