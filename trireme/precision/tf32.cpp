#include <trireme/precision/tf32.h>

#include <ATen/Context.h>

namespace trireme::precision {

void allow_tf32(bool allowed) {
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

} // namespace trireme::precision
