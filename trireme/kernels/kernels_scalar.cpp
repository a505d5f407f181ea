#include <trireme/kernels/combine_loops.h>
#include <trireme/kernels/kernel_sets.h>
#include <trireme/kernels/loops.h>

namespace trireme::kernels {

const KernelSet kScalarKernels = {&adam, &sgd, &squared_norm, &combine, &stream_copy};

} // namespace trireme::kernels
