#pragma once

#include <trireme/optim/device_kernels.h>

namespace trireme::optim {

/// kernels/cuda on the current stream of each device; partial sums are of the caching allocator. Only where nvcc
/// compiled them (TRIREME_CUDA_KERNELS).
extern const DeviceKernels kCudaKernels;

} // namespace trireme::optim
