#include <trireme/kernels/fused_loops.h>

namespace trireme::kernels {

const FusedKernelSet kAvx2FusedKernels = kFusedLoops;

} // namespace trireme::kernels
