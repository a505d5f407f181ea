#pragma once

#include <trireme/kernels/code_map.h>
#include <trireme/kernels/optimizer_args.h>
#include <trireme/kernels/stochastic.h>

#include <cuda_runtime.h>

#include <cstdint>

// One float as the rules' register, and the codes of 8-bit states.

namespace trireme::kernels::cuda {
namespace {

/// Every operation is rounded separately, whatever the compiler's options.
struct Lane {
  float x;

  static TRIREME_DEVICE Lane all(float value) { return {value}; }
};

__device__ inline Lane operator+(Lane a, Lane b) {
  return {__fadd_rn(a.x, b.x)};
}
__device__ inline Lane operator-(Lane a, Lane b) {
  return {__fsub_rn(a.x, b.x)};
}
__device__ inline Lane operator*(Lane a, Lane b) {
  return {__fmul_rn(a.x, b.x)};
}
__device__ inline Lane operator/(Lane a, Lane b) {
  return {__fdiv_rn(a.x, b.x)};
}
__device__ inline Lane fma(Lane a, Lane b, Lane c) {
  return {__fmaf_rn(a.x, b.x, c.x)};
}
__device__ inline Lane fnma(Lane a, Lane b, Lane c) {
  return {__fmaf_rn(-a.x, b.x, c.x)};
}
__device__ inline Lane sqrt(Lane a) {
  return {__fsqrt_rn(a.x)};
}
__device__ inline Lane sign(Lane a) {
  return {a.x > 0 ? 1.0F : a.x < 0 ? -1.0F : a.x};
}

__constant__ CodeMap<true> kSignedMap;
__constant__ CodeMap<false> kUnsignedMap;

template <bool kSigned>
__device__ inline const CodeMap<kSigned>& code_map() {
  if constexpr (kSigned) {
    return kSignedMap;
  } else {
    return kUnsignedMap;
  }
}

/// The code of x in a block with this scale.
template <bool kSigned>
__device__ inline uint8_t code_of(float x, float scale, uint32_t seed) {
  const bool usable = scale >= kLeastScale && scale <= 3.4028235e38F;
  const float noise = seed == kToNearest ? 0.0F : dither(x, seed);
  return usable ? encode_code(code_map<kSigned>(), x, __fdiv_rn(1.0F, scale), noise) : 0;
}

} // namespace
} // namespace trireme::kernels::cuda
