#include <trireme/kernels/fused_loops.h>

namespace trireme::kernels {

const FusedKernelSet kScalarFusedKernels = kFusedLoops;

} // namespace trireme::kernels
