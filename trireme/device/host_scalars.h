#pragma once

#include <trireme/device/stream.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace trireme::device {

/// Brings float64 tensors of one element each, all on one device, to the host: one small copy into pinned memory,
/// however many there are. What the device is given after the constructor is not waited for. On the CPU nothing is
/// copied.
class ScalarsToHost {
 public:
  /// Starts the copy, on the current stream. An undefined tensor reads as 0.
  explicit ScalarsToHost(const std::vector<at::Tensor>& scalars);
  /// Waits for the copy, once, and returns the values in their order.
  const std::vector<double>& wait();

 private:
  std::vector<double> values_;
  std::vector<size_t> from_device_; // whose values are on their way
  at::Tensor here_;
  std::optional<Event> copied_;
};

/// Both at once: one wait of the host.
std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars);

/// The scalar on this device, without a wait of the host: one that lies on the host is passed to a kernel by its value.
at::Tensor scalar_on(at::Device device, const at::Tensor& scalar);

/// Adds a loss (one element, any type) to a float64 sum, without waiting for it. The sum may be undefined before; it
/// lies on the device as soon as one of its losses does.
void add_scalar(at::Tensor& sum, const at::Tensor& value);

} // namespace trireme::device
