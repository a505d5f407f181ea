#pragma once

#include <trireme/kernels/dropout.h>
#include <trireme/kernels/fused_kernels.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::fused {

/// The loops over rows of kernels/fused_kernels.h for arrays on one kind of device. All pointers are to memory of
/// `device`: no function waits for it. Each returns once its work is ordered before any later use of the arrays there
/// (CUDA: on the current stream). `parameters` of the arguments may be bf16 where `element` is. Sums over rows, as of
/// weights' gradients, are written, not added, and are the same in every run.
struct RowKernels {
  // Rows [0, rows).
  void (*gelu)(const kernels::GeluArgs& args, int64_t rows, at::Device device);
  void (*gelu_backward)(const kernels::GeluArgs& args, int64_t rows, at::Device device);
  void (*layer_norm)(const kernels::LayerNormArgs& args, int64_t rows, at::Device device);
  void (*layer_norm_backward)(const kernels::LayerNormArgs& args, int64_t rows, at::Device device);
  void (*rms_norm)(const kernels::RmsNormArgs& args, int64_t rows, at::Device device);
  void (*rms_norm_backward)(const kernels::RmsNormArgs& args, int64_t rows, at::Device device);
  void (*add_bias)(const kernels::AddBiasArgs& args, int64_t rows, at::Device device);
  void (*column_sum)(const kernels::ColumnSumArgs& args, int64_t rows, at::Device device);
  /// args.device_scale is where the scale is.
  void (*cross_entropy)(const kernels::CrossEntropyArgs& args, int64_t rows, at::Device device);
  void (*cross_entropy_backward)(const kernels::CrossEntropyArgs& args, int64_t rows, at::Device device);
  void (*rotary)(const kernels::RotaryArgs& args, int64_t rows, at::Device device);
  // Elements [0, count).
  void (*gated_silu)(const kernels::GatedSiluArgs& args, int64_t count, at::Device device);
  void (*gated_silu_backward)(const kernels::GatedSiluArgs& args, int64_t count, at::Device device);
  /// f16 too.
  void (*dropout)(const kernels::DropoutArgs& args, int64_t count, at::Device device);
};

/// The kernels for the device of `tensor`; nullptr: ATen's operators do it there.
const RowKernels* row_kernels(const at::Tensor& tensor);

/// Sets the kernels of a kind of device. The CPU's are built in, CUDA's if nvcc compiled them. Call it before the first
/// tensor on such a device.
void register_row_kernels(at::DeviceType device, const RowKernels& kernels);

/// On all threads of at::parallel_for with the widest instructions of this machine.
extern const RowKernels kCpuRowKernels;

} // namespace trireme::fused
