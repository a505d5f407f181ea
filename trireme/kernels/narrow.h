#pragma once

#include <trireme/kernels/code_map.h>
#include <trireme/kernels/lanes.h>
#include <trireme/kernels/stochastic.h>

#include <cstdint>

// Conversions of each floating-point type to and from registers of floats.

namespace trireme::kernels {
namespace {

struct F32 {
  using Raw = float;
  static float load1(const Raw* p) { return *p; }
  static void store1(Raw* p, float x) { *p = x; }
  static Lanes load(const Raw* p) { return Lanes::load(p); }
  static void store(Raw* p, Lanes x) { x.store(p); }
};

struct Bf16 {
  using Raw = uint16_t;
  static float load1(const Raw* p) { return float_of(static_cast<uint32_t>(*p) << 16); }
  /// Rounds to nearest, ties to even; writes libtorch's NaN.
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
    // The exponent's bias changes by 112; a multiplication by a power of two is also correct for subnormals.
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
  const __m512i rounded =
      _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
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
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(lanes.x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
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

// ---- stochastic rounding (stochastic.h) ----

inline void store_stochastic_bf16(uint16_t* p, ScalarLanes x, uint32_t seed) {
  *p = stochastic_bf16(x.x, seed);
}

#if defined(__AVX512F__)

inline __m512i random_bits(__m512i bits, uint32_t seed) {
  __m512i hash = _mm512_xor_si512(bits, _mm512_set1_epi32(static_cast<int>(seed)));
  hash = _mm512_mullo_epi32(_mm512_xor_si512(hash, _mm512_maskz_srli_epi32(0xffff, hash, 16)),
                            _mm512_set1_epi32(static_cast<int>(0x85ebca6bU)));
  hash = _mm512_mullo_epi32(_mm512_xor_si512(hash, _mm512_maskz_srli_epi32(0xffff, hash, 13)),
                            _mm512_set1_epi32(static_cast<int>(0xc2b2ae35U)));
  return _mm512_maskz_srli_epi32(0xffff, hash, 16);
}
inline void store_stochastic_bf16(uint16_t* p, Lanes lanes, uint32_t seed) {
  const __m512i bits = _mm512_castps_si512(lanes.x);
  const __m512i rounded = _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(bits, random_bits(bits, seed)), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(lanes.x, lanes.x, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, safe));
}
inline __m512 dither(__m512i bits, uint32_t seed) {
  const __m512 random = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_srli_epi32(0xffff, random_bits(bits, seed), 1));
  return _mm512_fmadd_ps(random, _mm512_set1_ps(0x1p-15F), _mm512_set1_ps(0x1p-16F - 0.5F));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

inline __m256i random_bits(__m256i bits, uint32_t seed) {
  __m256i hash = _mm256_xor_si256(bits, _mm256_set1_epi32(static_cast<int>(seed)));
  hash = _mm256_mullo_epi32(_mm256_xor_si256(hash, _mm256_srli_epi32(hash, 16)),
                            _mm256_set1_epi32(static_cast<int>(0x85ebca6bU)));
  hash = _mm256_mullo_epi32(_mm256_xor_si256(hash, _mm256_srli_epi32(hash, 13)),
                            _mm256_set1_epi32(static_cast<int>(0xc2b2ae35U)));
  return _mm256_srli_epi32(hash, 16);
}
inline void store_stochastic_bf16(uint16_t* p, Lanes lanes, uint32_t seed) {
  const __m256i bits = _mm256_castps_si256(lanes.x);
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, random_bits(bits, seed)), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(lanes.x, lanes.x, _CMP_UNORD_Q));
  const __m256i safe = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(safe), _mm256_extracti128_si256(safe, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
inline __m256 dither(__m256i bits, uint32_t seed) {
  const __m256 random = _mm256_cvtepi32_ps(_mm256_srli_epi32(random_bits(bits, seed), 1));
  return _mm256_fmadd_ps(random, _mm256_set1_ps(0x1p-15F), _mm256_set1_ps(0x1p-16F - 0.5F));
}

#endif

/// Registers of either width.
template <class F, class V>
inline V load_as(const typename F::Raw* p) {
  if constexpr (V::kCount == 1) {
    return {F::load1(p)};
  } else {
    return F::load(p);
  }
}
template <class F, class V>
inline void store_as(typename F::Raw* p, V x) {
  if constexpr (V::kCount == 1) {
    F::store1(p, x.x);
  } else {
    F::store(p, x);
  }
}

} // namespace
} // namespace trireme::kernels
