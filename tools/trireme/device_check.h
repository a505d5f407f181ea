#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace trireme::tools {

/// A finding of `trireme doctor` on a GPU.
struct DeviceFinding {
  std::string what;
  std::string found;
  bool good = true;
};

/// The choice of "bf16": {"enabled": "auto"} on the device, with this process's threads. A failure of the device is a
/// finding, as in the functions below.
DeviceFinding check_bf16(c10::Device device);

/// Copies a batch to the device and back, sums squares of each type, and compares steps of each optimizer with the
/// CPU's. Steps run in fp32, with 16-bit gradients and masters, with bf16 states and, on devices with our own kernels,
/// with 8-bit states.
std::vector<DeviceFinding> check_device(c10::Device device);

} // namespace trireme::tools
