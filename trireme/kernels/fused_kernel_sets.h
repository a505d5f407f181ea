#pragma once

#include <trireme/kernels/fused_kernels.h>

namespace trireme::kernels {

// One per file, each compiled for its own instruction set.
extern const FusedKernelSet kScalarFusedKernels;
#ifdef TRIREME_KERNELS_X86
extern const FusedKernelSet kAvx2FusedKernels;
extern const FusedKernelSet kAvx512FusedKernels;
#endif

} // namespace trireme::kernels
