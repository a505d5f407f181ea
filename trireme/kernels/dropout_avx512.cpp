#include <trireme/kernels/dropout_loops.h>

namespace trireme::kernels {

const DropoutKernel kAvx512Dropout = &dropout_loop;

} // namespace trireme::kernels
