#pragma once

#include <trireme/device/stream.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace trireme::comm::staged {

/// The streams on which a group copies between a GPU and pinned host memory: one in each direction, so that they overlap.
struct Copies {
  explicit Copies(at::Device device) : down(device::another_stream(device)), up(device::another_stream(device)) {}
  c10::Stream down; ///< to the host
  c10::Stream up; ///< to the GPU

  /// Makes both streams wait for what the current stream was given, and keeps the tensor's memory until they are done with it.
  void begin(const at::Tensor& tensor) const;
  /// Copies to new pinned memory, contiguous; the event says when it has arrived.
  std::pair<at::Tensor, c10::Event> to_host(const at::Tensor& part) const;
  void to_device(const at::Tensor& part, const at::Tensor& pinned) const;
};

at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType type);

} // namespace trireme::comm::staged
