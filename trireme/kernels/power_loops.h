#pragma once

#include <trireme/kernels/kernels.h>
#include <trireme/kernels/pieces.h>

#include <cstdint>

// Products with powers of two that are stored as fp32 exponents, and sums of such products.

namespace trireme::kernels {
namespace {

/// Lowest bit of the exponent in fp32.
inline constexpr int kMantissaBits = 23;
/// Exponent of 2^-k, if 2^k has e: kInverse - e.
inline constexpr uint32_t kInverse = 254;

#if defined(__AVX512F__)

// The zero-masking forms avoid the warning described in lanes.h.
inline Lanes powers(const uint8_t* exponents, bool inverse) {
  const __m512i e = _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents)));
  const __mmask16 alive = _mm512_test_epi32_mask(e, e);
  const __m512i signed_e =
      inverse ? _mm512_maskz_sub_epi32(alive, _mm512_set1_epi32(static_cast<int>(kInverse)), e) : e;
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, signed_e, kMantissaBits))};
}

#elif defined(__AVX2__) && defined(__FMA__)

inline Lanes powers(const uint8_t* exponents, bool inverse) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents)));
  const __m256i dead = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
  const __m256i signed_e =
      inverse ? _mm256_andnot_si256(dead, _mm256_sub_epi32(_mm256_set1_epi32(static_cast<int>(kInverse)), e)) : e;
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

inline ScalarLanes inverse_powers(ScalarLanes, const uint8_t* exponents) {
  return ScalarLanes::all(power(*exponents, true));
}
#if defined(__AVX2__) && defined(__FMA__)
inline Lanes inverse_powers(Lanes, const uint8_t* exponents) {
  return powers(exponents, true);
}
#endif

/// Adds MomentumArgs' values for n elements to `to`.
template <class V, bool kFirst, bool kUnits>
inline void add_register(const MomentumArgs& args, const float* grad, int64_t at, float* to) {
  V x = V::load(grad) * V::all(args.grad_scale);
  if constexpr (kFirst) {
    x = fma(V::load(args.first + at), V::all(args.beta1), x);
  }
  if constexpr (kUnits) {
    x = x * inverse_powers(x, args.exponents + at);
  }
  (V::load(to) + x).store(to);
}

template <bool kFirst, bool kUnits>
void add_numbers(const MomentumArgs& args, int64_t begin, int64_t end, float* to) {
  alignas(64) float room[kRoom];
  for (int64_t piece = begin; piece < end; piece += kPiece) {
    const int64_t n = end - piece < kPiece ? end - piece : kPiece;
    const float* const grad = floats_of(args.grad, args.grad_type, piece, n, room);
    float* const sum = to + (piece - begin);
    int64_t i = 0;
    if constexpr (Lanes::kCount > 1) {
      for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
        add_register<Lanes, kFirst, kUnits>(args, grad + i, piece + i, sum + i);
      }
    }
    for (; i < n; ++i) {
      add_register<ScalarLanes, kFirst, kUnits>(args, grad + i, piece + i, sum + i);
    }
  }
}

void add_momentum(const MomentumArgs& args, int64_t begin, int64_t end, float* to) {
  if (args.first != nullptr) {
    args.exponents != nullptr ? add_numbers<true, true>(args, begin, end, to)
                              : add_numbers<true, false>(args, begin, end, to);
  } else {
    args.exponents != nullptr ? add_numbers<false, true>(args, begin, end, to)
                              : add_numbers<false, false>(args, begin, end, to);
  }
}

void add_quotients(const float* x, int64_t n, float divisor, float* to) {
  int64_t i = 0;
  if constexpr (Lanes::kCount > 1) {
    for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
      (Lanes::load(to + i) + Lanes::load(x + i) / Lanes::all(divisor)).store(to + i);
    }
  }
  for (; i < n; ++i) {
    (ScalarLanes::load(to + i) + ScalarLanes::load(x + i) / ScalarLanes::all(divisor)).store(to + i);
  }
}

} // namespace
} // namespace trireme::kernels
