#pragma once

#include <trireme/kernels/lanes.h>

#include <cstring>

// Sixteen floats as one value, whatever the width of the registers. A loop that adds lane by lane thus gives bit-equal
// sums in every instruction set. bf16 is widened on load and rounded on store,
// int8 is converted on load.

namespace trireme::kernels {
namespace {

using Bf16 = uint16_t;

// ---- one register ----

inline uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
inline float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

inline ScalarLanes max(ScalarLanes a, ScalarLanes b) {
  return a.x > b.x ? a : b;
}
inline ScalarLanes min(ScalarLanes a, ScalarLanes b) {
  return a.x < b.x ? a : b;
}
/// x * 2^n, where the low bits of t hold n.
inline ScalarLanes scale_exponent(ScalarLanes x, ScalarLanes t) {
  return {float_of(bits_of(x.x) + (bits_of(t.x) << 23))};
}
/// x < bound ? 0 : value; NaN passes.
inline ScalarLanes zero_below(ScalarLanes x, ScalarLanes bound, ScalarLanes value) {
  return x.x < bound.x ? ScalarLanes{0} : value;
}
/// sign bit of x ? a : b
inline ScalarLanes if_negative(ScalarLanes x, ScalarLanes a, ScalarLanes b) {
  return bits_of(x.x) >> 31 ? a : b;
}
inline ScalarLanes magnitude(ScalarLanes x) {
  return {float_of(bits_of(x.x) & 0x7fffffffu)};
}
inline void load(ScalarLanes& x, const Bf16* p) {
  x.x = float_of(static_cast<uint32_t>(*p) << 16);
}
inline void load(ScalarLanes& x, const int8_t* p) {
  x.x = static_cast<float>(*p);
}
inline Bf16 rounded(float x) {
  const uint32_t u = bits_of(x);
  return static_cast<Bf16>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline void store(ScalarLanes x, Bf16* p) {
  *p = rounded(x.x);
}

#if defined(__AVX512F__)

inline Lanes max(Lanes a, Lanes b) {
  return {_mm512_maskz_max_ps(0xffff, a.x, b.x)};
}
inline Lanes min(Lanes a, Lanes b) {
  return {_mm512_maskz_min_ps(0xffff, a.x, b.x)};
}
inline Lanes scale_exponent(Lanes x, Lanes t) {
  const __m512i n = _mm512_maskz_slli_epi32(0xffff, _mm512_castps_si512(t.x), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.x), n))};
}
inline Lanes zero_below(Lanes x, Lanes bound, Lanes value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.x, bound.x, _CMP_NLT_UQ), value.x)};
}
inline Lanes if_negative(Lanes x, Lanes a, Lanes b) {
  return {_mm512_mask_mov_ps(b.x, _mm512_movepi32_mask(_mm512_castps_si512(x.x)), a.x)};
}
inline Lanes magnitude(Lanes x) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x.x), _mm512_set1_epi32(0x7fffffff)))};
}
inline void load(Lanes& x, const Bf16* p) {
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  x.x = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
}
inline void load(Lanes& x, const int8_t* p) {
  const __m512i wide = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  x.x = _mm512_maskz_cvtepi32_ps(0xffff, wide);
}
inline void store(Lanes x, Bf16* p) {
  const __m512i u = _mm512_castps_si512(x.x);
  const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, u, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i high = _mm512_maskz_srli_epi32(0xffff, sum, 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.x, x.x, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_mov_epi32(high, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, safe));
}

#elif defined(__AVX2__) && defined(__FMA__)

inline Lanes max(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.x, b.x)};
}
inline Lanes min(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.x, b.x)};
}
inline Lanes scale_exponent(Lanes x, Lanes t) {
  return {
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.x), _mm256_slli_epi32(_mm256_castps_si256(t.x), 23)))};
}
inline Lanes zero_below(Lanes x, Lanes bound, Lanes value) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.x, bound.x, _CMP_NLT_UQ), value.x)};
}
inline Lanes if_negative(Lanes x, Lanes a, Lanes b) {
  return {_mm256_blendv_ps(b.x, a.x, x.x)};
}
inline Lanes magnitude(Lanes x) {
  return {_mm256_and_ps(x.x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)))};
}
inline void load(Lanes& x, const Bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  x.x = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline void load(Lanes& x, const int8_t* p) {
  x.x = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store(Lanes x, Bf16* p) {
  const __m256i u = _mm256_castps_si256(x.x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i high = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.x, x.x, _CMP_UNORD_Q));
  const __m256i safe = _mm256_blendv_epi8(high, _mm256_set1_epi32(0x7fc0), nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(safe), _mm256_extracti128_si256(safe, 1)));
}

#endif

// ---- sixteen lanes ----

struct Wide {
  static constexpr int kCount = 16;
  static constexpr int kParts = kCount / Lanes::kCount;
  Lanes part[kParts];

  static Wide all(float value) {
    return map([&](int) { return Lanes::all(value); });
  }
  static Wide zero() { return all(0); }
  static Wide load(const float* p) {
    return map([&](int i) { return Lanes::load(p + i * Lanes::kCount); });
  }
  /// bf16 or int8.
  template <class T>
  static Wide load(const T* p) {
    return map([&](int i) {
      Lanes x;
      kernels::load(x, p + i * Lanes::kCount);
      return x;
    });
  }
  /// The first n of p, then zeros.
  template <class T>
  static Wide load(const T* p, int n) {
    T padded[kCount] = {};
    std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(T));
    return load(padded);
  }
  void store(float* p) const {
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) {
      part[i].store(p + i * Lanes::kCount);
    }
  }
  void store(Bf16* p) const {
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) {
      kernels::store(part[i], p + i * Lanes::kCount);
    }
  }
  template <class T>
  void store(T* p, int n) const {
    T padded[kCount];
    store(padded);
    std::memcpy(p, padded, static_cast<size_t>(n) * sizeof(T));
  }

  template <class F>
  static Wide map(const F& f) {
    Wide result;
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) {
      result.part[i] = f(i);
    }
    return result;
  }

  friend Wide operator+(const Wide& a, const Wide& b) {
    return map([&](int i) { return a.part[i] + b.part[i]; });
  }
  friend Wide operator-(const Wide& a, const Wide& b) {
    return map([&](int i) { return a.part[i] - b.part[i]; });
  }
  friend Wide operator*(const Wide& a, const Wide& b) {
    return map([&](int i) { return a.part[i] * b.part[i]; });
  }
  friend Wide operator/(const Wide& a, const Wide& b) {
    return map([&](int i) { return a.part[i] / b.part[i]; });
  }
};

inline Wide fma(const Wide& a, const Wide& b, const Wide& c) {
  return Wide::map([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}
inline Wide fnma(const Wide& a, const Wide& b, const Wide& c) {
  return Wide::map([&](int i) { return fnma(a.part[i], b.part[i], c.part[i]); });
}
/// b where either is NaN.
inline Wide max(const Wide& a, const Wide& b) {
  return Wide::map([&](int i) { return max(a.part[i], b.part[i]); });
}
inline Wide min(const Wide& a, const Wide& b) {
  return Wide::map([&](int i) { return min(a.part[i], b.part[i]); });
}
inline Wide scale_exponent(const Wide& x, const Wide& t) {
  return Wide::map([&](int i) { return scale_exponent(x.part[i], t.part[i]); });
}
inline Wide zero_below(const Wide& x, const Wide& bound, const Wide& value) {
  return Wide::map([&](int i) { return zero_below(x.part[i], bound.part[i], value.part[i]); });
}
inline Wide if_negative(const Wide& x, const Wide& a, const Wide& b) {
  return Wide::map([&](int i) { return if_negative(x.part[i], a.part[i], b.part[i]); });
}
inline Wide magnitude(const Wide& x) {
  return Wide::map([&](int i) { return magnitude(x.part[i]); });
}

/// Sum of the lanes: adds halves repeatedly.
inline float sum(const Wide& x) {
#if defined(__AVX2__) && defined(__FMA__)
#if defined(__AVX512F__)
  const __m256 eight = _mm256_add_ps(_mm512_extractf32x8_ps(x.part[0].x, 0), _mm512_extractf32x8_ps(x.part[0].x, 1));
#else
  const __m256 eight = _mm256_add_ps(x.part[0].x, x.part[1].x);
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  float lane[Wide::kCount];
  x.store(lane);
  for (int half = Wide::kCount / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lane[i] += lane[i + half];
    }
  }
  return lane[0];
#endif
}
/// The largest lane; NaN wins.
inline float largest(const Wide& x) {
  float lane[Wide::kCount];
  x.store(lane);
  float result = lane[0];
  for (int i = 1; i < Wide::kCount; ++i) {
    result = lane[i] > result || lane[i] != lane[i] ? lane[i] : result;
  }
  return result;
}

// ---- functions ----

/// e^x within 1.1 ulp for x in [-87.3, 88]; 0 below (no denormal results), e^88 above, NaN for NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 q(r), q fitted to 4e-9.
inline Wide exp(const Wide& x) {
  const Wide lowest = Wide::all(-87.3f);
  const Wide inside = max(lowest, min(Wide::all(88.0f), x));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const Wide magic = Wide::all(12582912.0f);
  const Wide t = fma(inside, Wide::all(1.44269504f), magic);
  const Wide n = t - magic;
  const Wide r = fnma(n, Wide::all(1.42860682e-6f), fnma(n, Wide::all(0.693145752f), inside));
  Wide q = Wide::all(0.00139464578f);
  q = fma(q, r, Wide::all(0.00836915895f));
  q = fma(q, r, Wide::all(0.0416662619f));
  q = fma(q, r, Wide::all(0.166665167f));
  q = fma(q, r, Wide::all(0.5f));
  const Wide e = fma(q * r, r, r) + Wide::all(1.0f);
  return zero_below(x, lowest, scale_exponent(e, t));
}

/// e^(z^2) erfc(z) for z in [0, 12], fitted to 4e-8 as a polynomial of 1 / (1 + 0.35 z).
inline Wide scaled_erfc(const Wide& z) {
  const Wide t = Wide::all(1.0f) / fma(z, Wide::all(0.35f), Wide::all(1.0f));
  constexpr float kCoefficients[] = {-0.35728246f, 0.740107954f, -0.60882026f, 0.564370573f,   -0.017540358f,
                                     0.232940122f, 0.189528227f, 0.198218852f, -3.08400858e-5f};
  Wide p = Wide::all(0.0585081279f);
  for (float coefficient : kCoefficients) {
    p = fma(p, t, Wide::all(coefficient));
  }
  return p;
}

} // namespace
} // namespace trireme::kernels
