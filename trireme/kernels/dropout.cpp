#include <trireme/kernels/dropout.h>

#include <trireme/kernels/dropout_kernels.h>

#include <algorithm>
#include <cmath>

namespace trireme::kernels {

void DropoutArgs::set_probability(double p) {
  threshold = static_cast<uint32_t>(std::min(std::nearbyint(p * 0x1p32), 0x1p32 - 1));
  scale = p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0F; // 1: all values become 0
}

DropoutKernel dropout_kernel(Simd simd) {
#ifdef TRIREME_KERNELS_X86
  if (simd == Simd::avx512) {
    return kAvx512Dropout;
  }
  if (simd == Simd::avx2) {
    return kAvx2Dropout;
  }
#endif
  static_cast<void>(simd);
  return kScalarDropout;
}

} // namespace trireme::kernels
