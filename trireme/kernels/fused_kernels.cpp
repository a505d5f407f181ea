#include <trireme/kernels/fused_kernels.h>

#include <trireme/kernels/fused_kernel_sets.h>

namespace trireme::kernels {

const FusedKernelSet& fused_kernel_set(Simd simd) {
#ifdef TRIREME_KERNELS_X86
  if (simd == Simd::avx512) {
    return kAvx512FusedKernels;
  }
  if (simd == Simd::avx2) {
    return kAvx2FusedKernels;
  }
#endif
  static_cast<void>(simd);
  return kScalarFusedKernels;
}

const FusedKernelSet& active_fused_kernels() {
  static const FusedKernelSet& set = fused_kernel_set(active_simd());
  return set;
}

} // namespace trireme::kernels
