#pragma once

#include <trireme/kernels/kernels.h>
#include <trireme/kernels/lanes.h>

#include <type_traits>

// Element-by-element sums, maxima and minima of several arrays, and copies past the caches; written once, included
// by each kernels_<simd>.cpp.

namespace trireme::kernels {
namespace {

inline uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
inline float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

struct F32 {
  using Raw = float;
  static float load1(const Raw* p) {
    return *p;
  }
  static void store1(Raw* p, float x) {
    *p = x;
  }
  static Lanes load(const Raw* p) {
    return Lanes::load(p);
  }
  static void store(Raw* p, Lanes x) {
    x.store(p);
  }
};

struct Bf16 {
  using Raw = uint16_t;
  static float load1(const Raw* p) {
    return float_of(static_cast<uint32_t>(*p) << 16);
  }
  /// Rounds to nearest, ties to even; NaN becomes the one that libtorch writes.
  static void store1(Raw* p, float x) {
    const uint32_t u = bits_of(x);
    *p = static_cast<Raw>(x != x ? 0x7fc0U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  static Lanes load(const Raw* p);
  static void store(Raw* p, Lanes x);
};

struct F16 {
  using Raw = uint16_t;
  static float load1(const Raw* p) {
    const uint32_t sign = static_cast<uint32_t>(*p & 0x8000U) << 16;
    const uint32_t magnitude = *p & 0x7fffU;
    if (magnitude >= 0x7c00U) { // infinity, NaN (made quiet as the processor's conversion does)
      return float_of(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13 | (magnitude > 0x7c00U ? 0x400000U : 0U));
    }
    // The exponent's bias changes by 112; multiplying by a power of two also gets subnormals right.
    return float_of(sign | bits_of(float_of(magnitude << 13) * float_of(0x77800000U)));
  }
  static void store1(Raw* p, float x) {
    const uint32_t u = bits_of(x);
    const uint32_t sign = (u >> 16) & 0x8000U;
    const uint32_t magnitude = u & 0x7fffffffU;
    uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    } else if (magnitude >= 0x477ff000U) { // rounds to more than 65504
      half = 0x7c00U;
    } else if (magnitude < 0x38800000U) { // subnormal: adding 0.5 lets the processor round at the last bit
      half = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
    } else {
      half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    *p = static_cast<Raw>(sign | half);
  }
  static Lanes load(const Raw* p);
  static void store(Raw* p, Lanes x);
};

#if defined(__AVX512F__)

inline Lanes Bf16::load(const Raw* p) {
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16))};
}
inline void Bf16::store(Raw* p, Lanes lanes) {
  const __m512i u = _mm512_castps_si512(lanes.x);
  const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(lanes.x, lanes.x, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, safe));
}
inline Lanes F16::load(const Raw* p) {
  return {_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void F16::store(Raw* p, Lanes lanes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xffff, lanes.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

inline Lanes Bf16::load(const Raw* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline void Bf16::store(Raw* p, Lanes lanes) {
  const __m256i u = _mm256_castps_si256(lanes.x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(lanes.x, lanes.x, _CMP_UNORD_Q));
  const __m256i safe = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(safe), _mm256_extracti128_si256(safe, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
inline Lanes F16::load(const Raw* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void F16::store(Raw* p, Lanes lanes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(lanes.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#else

inline Lanes Bf16::load(const Raw* p) {
  return {load1(p)};
}
inline void Bf16::store(Raw* p, Lanes lanes) {
  store1(p, lanes.x);
}
inline Lanes F16::load(const Raw* p) {
  return {load1(p)};
}
inline void F16::store(Raw* p, Lanes lanes) {
  store1(p, lanes.x);
}

#endif

template <class T>
const T* input(const CombineArgs& args, int index) {
  return static_cast<const T*>(args.in[index]);
}
template <class T>
T* output(const CombineArgs& args, int index) {
  return static_cast<T*>(args.out[index]);
}

/// Registers of F's values from element i on: added in float in the order of the inputs, rounded once.
template <class F, class V, int kBatch>
inline void sum_batch(const CombineArgs& args, int64_t i) {
  using Raw = typename F::Raw;
  V sum[kBatch];
#pragma GCC unroll 8
  for (int k = 0; k < kBatch; ++k) {
    sum[k] = F::load(input<Raw>(args, 0) + i + k * V::kCount);
  }
  for (int index = 1; index < args.inputs; ++index) {
    const Raw* const from = input<Raw>(args, index) + i;
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      sum[k] = sum[k] + F::load(from + k * V::kCount);
    }
  }
  for (int index = 0; index < args.outputs; ++index) {
    Raw* const to = output<Raw>(args, index) + i;
#pragma GCC unroll 8
    for (int k = 0; k < kBatch; ++k) {
      F::store(to + k * V::kCount, sum[k]);
    }
  }
}

template <Combine kOp>
inline float choose(float a, float b) {
  const bool take = kOp == Combine::max ? b > a : b < a;
  return take || b != b ? b : a;
}

template <class F>
void sum_floats(const CombineArgs& args, int64_t begin, int64_t end) {
  using Raw = typename F::Raw;
  constexpr int kBatch = 8;
  int64_t i = begin;
  for (; i + kBatch * Lanes::kCount <= end; i += kBatch * Lanes::kCount) {
    sum_batch<F, Lanes, kBatch>(args, i);
  }
  for (; i < end; ++i) {
    float sum = F::load1(input<Raw>(args, 0) + i);
    for (int index = 1; index < args.inputs; ++index) {
      sum = sum + F::load1(input<Raw>(args, index) + i);
    }
    for (int index = 0; index < args.outputs; ++index) {
      F::store1(output<Raw>(args, index) + i, sum);
    }
  }
}

template <class F, Combine kOp>
void choose_floats(const CombineArgs& args, int64_t begin, int64_t end) {
  using Raw = typename F::Raw;
  for (int64_t i = begin; i < end; ++i) {
    float best = F::load1(input<Raw>(args, 0) + i);
    for (int index = 1; index < args.inputs; ++index) {
      best = choose<kOp>(best, F::load1(input<Raw>(args, index) + i));
    }
    for (int index = 0; index < args.outputs; ++index) {
      F::store1(output<Raw>(args, index) + i, best);
    }
  }
}

/// Integers wrap around.
template <class T, Combine kOp>
inline T merge(T a, T b) {
  if constexpr (kOp == Combine::sum && std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else if constexpr (kOp == Combine::sum) {
    return a + b;
  } else {
    const bool take = kOp == Combine::max ? b > a : b < a;
    return take || b != b ? b : a;
  }
}

template <class T, Combine kOp>
void combine_values(const CombineArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 256;
  T block[kBlock];
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = end - i < kBlock ? end - i : kBlock;
    const T* from = input<T>(args, 0) + i;
    for (int64_t k = 0; k < n; ++k) {
      block[k] = from[k];
    }
    for (int index = 1; index < args.inputs; ++index) {
      from = input<T>(args, index) + i;
      for (int64_t k = 0; k < n; ++k) {
        block[k] = merge<T, kOp>(block[k], from[k]);
      }
    }
    for (int index = 0; index < args.outputs; ++index) {
      T* const to = output<T>(args, index) + i;
      for (int64_t k = 0; k < n; ++k) {
        to[k] = block[k];
      }
    }
  }
}

template <class F>
void combine_floats(const CombineArgs& args, int64_t begin, int64_t end) {
  if (args.combine == Combine::sum) {
    sum_floats<F>(args, begin, end);
  } else if (args.combine == Combine::max) {
    choose_floats<F, Combine::max>(args, begin, end);
  } else {
    choose_floats<F, Combine::min>(args, begin, end);
  }
}

template <class T>
void combine_type(const CombineArgs& args, int64_t begin, int64_t end) {
  if (args.combine == Combine::sum) {
    combine_values<T, Combine::sum>(args, begin, end);
  } else if (args.combine == Combine::max) {
    combine_values<T, Combine::max>(args, begin, end);
  } else {
    combine_values<T, Combine::min>(args, begin, end);
  }
}

void combine(const CombineArgs& args, int64_t begin, int64_t end) {
  switch (args.element) {
    case Element::f32:
      return combine_floats<F32>(args, begin, end);
    case Element::f16:
      return combine_floats<F16>(args, begin, end);
    case Element::bf16:
      return combine_floats<Bf16>(args, begin, end);
    case Element::f64:
      return combine_type<double>(args, begin, end);
    case Element::u8:
      return combine_type<uint8_t>(args, begin, end);
    case Element::i8:
      return combine_type<int8_t>(args, begin, end);
    case Element::i16:
      return combine_type<int16_t>(args, begin, end);
    case Element::i32:
      return combine_type<int32_t>(args, begin, end);
    case Element::i64:
      return combine_type<int64_t>(args, begin, end);
  }
}

void stream_copy(void* to, const void* from, int64_t bytes) {
#if defined(__AVX512F__) || defined(__AVX2__)
  constexpr int64_t kLine = 64;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const int64_t lead = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(target) & (kLine - 1));
  if (bytes < lead + kLine) {
    __builtin_memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  __builtin_memcpy(target, source, static_cast<size_t>(lead));
  int64_t at = lead;
  for (; at + kLine <= bytes; at += kLine) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), _mm512_loadu_si512(source + at));
#else
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + kLine / 2));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + kLine / 2), high);
#endif
  }
  __builtin_memcpy(target + at, source + at, static_cast<size_t>(bytes - at));
  _mm_sfence(); // streaming stores are not ordered by a later release store
#else
  __builtin_memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

} // namespace
} // namespace trireme::kernels
