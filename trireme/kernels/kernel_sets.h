#pragma once

#include <trireme/kernels/kernels.h>

namespace trireme::kernels {

// One per file, each compiled for its own instruction set.
extern const KernelSet kScalarKernels;
#ifdef TRIREME_KERNELS_X86
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
#endif

} // namespace trireme::kernels
