#pragma once

#include <trireme/kernels/dropout.h>

namespace trireme::kernels {

// One per file, each compiled for its own instruction set.
extern const DropoutKernel kScalarDropout;
#ifdef TRIREME_KERNELS_X86
extern const DropoutKernel kAvx2Dropout;
extern const DropoutKernel kAvx512Dropout;
#endif

} // namespace trireme::kernels
