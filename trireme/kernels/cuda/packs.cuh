#pragma once

#include <trireme/kernels/element.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// Neighbouring elements of a row as floats, read and written 16 bytes at a time.

namespace trireme::kernels::cuda {
namespace {

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_float(__half x) {
  return __half2float(x);
}
__device__ inline void round_to(float x, float& to) {
  to = x;
}
__device__ inline void round_to(float x, __nv_bfloat16& to) {
  to = __float2bfloat16_rn(x);
}
__device__ inline void round_to(float x, __half& to) {
  to = __float2half_rn(x);
}

/// kWidth elements. Those of 16 bytes and more must begin at a multiple of 16 bytes.
template <int kWidth>
struct Pack {
  float x[kWidth];

  template <class T>
  static __device__ Pack load(const T* from) {
    Pack pack;
    if constexpr (kWidth * sizeof(T) % 16 == 0) {
      constexpr int kLoads = kWidth * sizeof(T) / 16;
      Raw<T> raw;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        raw.words[i] = reinterpret_cast<const uint4*>(from)[i];
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        pack.x[i] = to_float(raw.elements[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        pack.x[i] = to_float(from[i]);
      }
    }
    return pack;
  }

  template <class T>
  __device__ void store(T* to) const {
    if constexpr (kWidth * sizeof(T) % 16 == 0) {
      constexpr int kStores = kWidth * sizeof(T) / 16;
      Raw<T> raw;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        round_to(x[i], raw.elements[i]);
      }
#pragma unroll
      for (int i = 0; i < kStores; ++i) {
        reinterpret_cast<uint4*>(to)[i] = raw.words[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        round_to(x[i], to[i]);
      }
    }
  }

  /// As an array of type T gives it back.
  template <class T>
  __device__ Pack rounded() const {
    Pack pack;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      T element;
      round_to(x[i], element);
      pack.x[i] = to_float(element);
    }
    return pack;
  }

 private:
  template <class T>
  union Raw {
    __device__ Raw() {}
    uint4 words[kWidth * sizeof(T) / 16];
    T elements[kWidth];
  };
};

/// Elements of type T in 16 bytes.
template <class T>
inline constexpr int kWide = static_cast<int>(16 / sizeof(T));

/// Calls f(T(), width) for the element's type: with a width of 16 bytes if `wide`, else with one of 1. The width is a
/// type, whose `value` is constant.
template <int kWidth>
struct Width {
  static constexpr int value = kWidth;
};
template <class F>
void with_packs(Element element, bool wide, const F& f) {
  if (element == Element::bf16) {
    wide ? f(__nv_bfloat16(), Width<kWide<__nv_bfloat16>>()) : f(__nv_bfloat16(), Width<1>());
  } else {
    wide ? f(float(), Width<kWide<float>>()) : f(float(), Width<1>());
  }
}

/// Whether all arrays begin at a multiple of 16 bytes; nullptr does.
template <class... Array>
bool aligned(const Array*... arrays) {
  return (... && (reinterpret_cast<uintptr_t>(arrays) % 16 == 0));
}

} // namespace
} // namespace trireme::kernels::cuda
