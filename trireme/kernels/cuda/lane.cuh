#pragma once

#include <trireme/kernels/code_map.h>
#include <trireme/kernels/optimizer_args.h>
#include <trireme/kernels/stochastic.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// One float as the rules' register, and elements of every type as floats.

namespace trireme::kernels::cuda {
namespace {

/// Every operation is rounded separately, whatever the compiler's options.
struct Lane {
  float x;

  static TRIREME_DEVICE Lane all(float value) {
    return {value};
  }
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

__device__ inline float read(const void* array, Element type, int64_t i) {
  if (type == Element::bf16) {
    return __bfloat162float(static_cast<const __nv_bfloat16*>(array)[i]);
  }
  if (type == Element::f16) {
    return __half2float(static_cast<const __half*>(array)[i]);
  }
  return static_cast<const float*>(array)[i];
}

__device__ inline void write(void* array, Element type, int64_t i, float x) {
  if (type == Element::bf16) {
    static_cast<__nv_bfloat16*>(array)[i] = __float2bfloat16_rn(x);
  } else if (type == Element::f16) {
    static_cast<__half*>(array)[i] = __float2half_rn(x);
  } else {
    static_cast<float*>(array)[i] = x;
  }
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

template <bool kSigned>
__device__ inline float read_state(const StateArray& state, int64_t i) {
  if (state.type == Element::u8) {
    return decode_code(code_map<kSigned>(), static_cast<const uint8_t*>(state.values)[i], state.scales[i / kStateBlock]);
  }
  return read(state.values, state.type, i);
}

/// The largest of all threads' values in a block of kStateBlock threads; `room` has one per warp. All threads must call
/// it before any returns.
__device__ inline uint32_t largest_of_block(uint32_t bits, uint32_t* room) {
  bits = __reduce_max_sync(0xffffffffU, bits);
  __syncthreads(); // `room` may still be read
  if (threadIdx.x % 32 == 0) {
    room[threadIdx.x / 32] = bits;
  }
  __syncthreads();
  for (int warp = 0; warp < kStateBlock / 32; ++warp) {
    bits = room[warp] > bits ? room[warp] : bits;
  }
  return bits;
}

/// The code of x in a block with this scale.
template <bool kSigned>
__device__ inline uint8_t code_of(float x, float scale, uint32_t seed) {
  const bool usable = scale >= kLeastScale && scale <= 3.4028235e38F;
  const float noise = seed == kToNearest ? 0.0F : dither(x, seed);
  return usable ? encode_code(code_map<kSigned>(), x, __fdiv_rn(1.0F, scale), noise) : 0;
}

/// Called by all threads of the block, each with its element; threads past the end write nothing.
template <bool kSigned>
__device__ inline void write_state(const StateArray& state, int64_t i, bool inside, float x, uint32_t seed, uint32_t* room) {
  if (state.type != Element::u8) {
    if (inside && state.type == Element::bf16 && seed != kToNearest) {
      static_cast<uint16_t*>(state.values)[i] = stochastic_bf16(x, seed);
    } else if (inside) {
      write(state.values, state.type, i, x);
    }
    return;
  }
  const float scale = float_of(largest_of_block(inside ? bits_of(x) & 0x7fffffffU : 0, room));
  if (inside) {
    static_cast<uint8_t*>(state.values)[i] = code_of<kSigned>(x, scale, seed);
  }
  if (threadIdx.x == 0) { // all have read the old one, which they passed to largest_of_block()
    state.scales[i / kStateBlock] = scale < kLeastScale ? 0 : scale;
  }
}

} // namespace
} // namespace trireme::kernels::cuda
