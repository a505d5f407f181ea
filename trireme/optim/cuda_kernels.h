#pragma once

#include <trireme/optim/device_kernels.h>

namespace trireme::optim {

/// kernels/cuda on the current stream of each device; partial sums come from the caching allocator. Exists only if nvcc
/// compiled them (TRIREME_CUDA_KERNELS).
extern const DeviceKernels kCudaKernels;

} // namespace trireme::optim
