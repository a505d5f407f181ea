#pragma once

#include <trireme/fused/row_kernels.h>

namespace trireme::fused {

/// kernels/cuda on the current stream of each device; partial sums come from the caching allocator. Exists only if nvcc
/// compiled them.
extern const RowKernels kCudaRowKernels;

} // namespace trireme::fused
