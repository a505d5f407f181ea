#include <trireme/kernels/dropout_loops.h>

namespace trireme::kernels {

const DropoutKernel kAvx2Dropout = &dropout_loop;

} // namespace trireme::kernels
