#include <trireme/kernels/kernels.h>

#include <trireme/kernels/kernel_sets.h>

namespace trireme::kernels {

const KernelSet& kernel_set(Simd simd) {
#ifdef TRIREME_KERNELS_X86
  if (simd == Simd::avx512) {
    return kAvx512Kernels;
  }
  if (simd == Simd::avx2) {
    return kAvx2Kernels;
  }
#endif
  static_cast<void>(simd);
  return kScalarKernels;
}

const KernelSet& active_kernels() {
  static const KernelSet& set = kernel_set(active_simd());
  return set;
}

} // namespace trireme::kernels
