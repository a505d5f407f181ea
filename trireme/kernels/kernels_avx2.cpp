#include <trireme/kernels/kernel_sets.h>
#include <trireme/kernels/loops.h>

namespace trireme::kernels {

const KernelSet kAvx2Kernels = {&adam, &sgd, &squared_norm};

} // namespace trireme::kernels
