#include <trireme/kernels/dropout_loops.h>

namespace trireme::kernels {

const DropoutKernel kScalarDropout = &dropout_loop;

} // namespace trireme::kernels
