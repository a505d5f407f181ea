#pragma once

#include <trireme/device/stream.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace trireme::device {

/// Copies float64 tensors of one element each, all on one device, to the host: one small copy into pinned memory for
/// any number of them. It does not wait for work given to the device after the constructor. On the CPU nothing is
/// copied.
class ScalarsToHost {
 public:
  /// Starts the copy, on the current stream. An undefined tensor reads as 0.
  explicit ScalarsToHost(const std::vector<at::Tensor>& scalars);
  /// Whether the values are here; wait() then does not wait.
  bool is_here();
  /// Waits for the copy, once, and returns the values in order.
  const std::vector<double>& wait();

 private:
  void arrived();

  std::vector<double> values_;
  std::vector<size_t> from_device_; // indices of values that are being copied
  at::Tensor here_;
  std::optional<Event> copied_;
};

/// Starts the copy and waits for it: one wait of the host.
std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars);

/// Returns the scalar on this device without a wait of the host; a scalar on the host is passed to a kernel by value.
at::Tensor scalar_on(at::Device device, const at::Tensor& scalar);

/// Adds a loss (one element, any type) to a float64 sum, without waiting for it. The sum may be undefined before; it is
/// on the device once one of its losses is.
void add_scalar(at::Tensor& sum, const at::Tensor& value);

} // namespace trireme::device
