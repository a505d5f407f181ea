#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::tools {

/// Sizes of the passes: tokens, numbers per token, classes of the loss (of an eighth of the tokens).
struct PassSizes {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
};

/// One of Trireme's own passes of a transformer on a device (fused/row_kernels.h).
struct DevicePass {
  std::string name;
  /// Makes the arrays, which the call holds. The bytes are those that it must read and write.
  std::function<std::pair<double, std::function<void()>>()> make;
};

/// All of them for tensors of this type; empty where ATen's operators do the work. Errors: InputError for hidden sizes
/// without even heads.
std::vector<DevicePass> device_passes(const PassSizes& sizes, at::ScalarType type, at::Device device);

} // namespace trireme::tools
