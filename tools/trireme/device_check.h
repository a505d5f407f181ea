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

/// Steps each optimizer on the device and on the CPU with the same numbers, sums squares, and copies a batch there and back.
std::vector<DeviceFinding> check_device(c10::Device device);

} // namespace trireme::tools
