#pragma once

#include <trireme/kernels/lanes.h>

#include <cstdint>

// Products with powers of two that are kept as the exponents of fp32 numbers.

namespace trireme::kernels {
namespace {

/// fp32 numbers have their exponent from this bit on.
inline constexpr int kMantissaBits = 23;
/// Of 2^-k, where 2^k has e: kInverse - e.
inline constexpr uint32_t kInverse = 254;

#if defined(__AVX512F__)

// The zero-masking forms for the reason that lanes.h gives.
inline Lanes powers(const uint8_t* exponents, bool inverse) {
  const __m512i e = _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents)));
  const __mmask16 alive = _mm512_test_epi32_mask(e, e);
  const __m512i signed_e = inverse ? _mm512_maskz_sub_epi32(alive, _mm512_set1_epi32(static_cast<int>(kInverse)), e) : e;
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, signed_e, kMantissaBits))};
}

#elif defined(__AVX2__) && defined(__FMA__)

inline Lanes powers(const uint8_t* exponents, bool inverse) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents)));
  const __m256i dead = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
  const __m256i signed_e = inverse ? _mm256_andnot_si256(dead, _mm256_sub_epi32(_mm256_set1_epi32(static_cast<int>(kInverse)), e)) : e;
  return {_mm256_castsi256_ps(_mm256_slli_epi32(signed_e, kMantissaBits))};
}

#endif

inline float power(uint32_t exponent, bool inverse) {
  const uint32_t bits = (inverse && exponent != 0 ? kInverse - exponent : exponent) << kMantissaBits;
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

void scale_by_powers(const uint8_t* exponents, int64_t n, bool inverse, float* x) {
  int64_t i = 0;
#if defined(__AVX2__) && defined(__FMA__)
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
    (Lanes::load(x + i) * powers(exponents + i, inverse)).store(x + i);
  }
#endif
  for (; i < n; ++i) {
    x[i] *= power(exponents[i], inverse);
  }
}

} // namespace
} // namespace trireme::kernels
