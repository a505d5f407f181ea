#include <trireme/kernels/fused_loops.h>

namespace trireme::kernels {

const FusedKernelSet kAvx512FusedKernels = kFusedLoops;

} // namespace trireme::kernels
