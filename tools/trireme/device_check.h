#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace trireme::tools {

/// What `trireme doctor` found out about one thing on a GPU.
struct DeviceFinding {
  std::string what;
  std::string found;
  bool good = true;
};

/// What "bf16": {"enabled": "auto"} would choose there, with this process's threads. A device that fails is a finding,
/// as everywhere here.
DeviceFinding check_bf16(c10::Device device);

/// Copies a batch to the device and back, adds up squares of each type, and steps each optimizer there and on the CPU
/// with the same numbers: in fp32, with 16-bit gradients and masters, with bf16 states and, where the device has
/// kernels of our own, with 8-bit states.
std::vector<DeviceFinding> check_device(c10::Device device);

} // namespace trireme::tools
