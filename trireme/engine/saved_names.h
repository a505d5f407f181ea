#pragma once

#include <trireme/base/error.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::engine {

/// Names in a checkpoint: of a rank's random state on a device, and of what each replica has for itself.
inline std::string rng_name(at::Device device, int rank) {
  return concat("rng/", c10::DeviceTypeName(device.type(), /*lower_case=*/true), '/', rank);
}

inline std::string of_replica(int64_t replica, const std::string& name) {
  return concat("replica", replica, '/', name);
}

/// Random numbers come from the CPU's generator and, on a GPU, also from the GPU's.
inline std::vector<at::Device> devices_with_rng(at::Device device) {
  return device.is_cpu() ? std::vector<at::Device>{at::kCPU} : std::vector<at::Device>{at::kCPU, device};
}

} // namespace trireme::engine
