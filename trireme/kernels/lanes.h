#pragma once

// Registers of floats with the few operations the loops need, for the instruction set of the including file.
// Everything is in an unnamed namespace: two files compiled for different processors must never share a
// function.

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

#include <cstdint>

namespace trireme::kernels {
namespace {

struct ScalarLanes {
  static constexpr int kCount = 1;
  float x;

  static ScalarLanes load(const float* p) { return {*p}; }
  static ScalarLanes all(float value) { return {value}; }
  void store(float* p) const { *p = x; }
  friend ScalarLanes operator+(ScalarLanes a, ScalarLanes b) { return {a.x + b.x}; }
  friend ScalarLanes operator*(ScalarLanes a, ScalarLanes b) { return {a.x * b.x}; }
  friend ScalarLanes operator-(ScalarLanes a, ScalarLanes b) { return {a.x - b.x}; }
  friend ScalarLanes operator/(ScalarLanes a, ScalarLanes b) { return {a.x / b.x}; }
};

/// a * b + c, rounded once.
inline ScalarLanes fma(ScalarLanes a, ScalarLanes b, ScalarLanes c) {
  return {__builtin_fmaf(a.x, b.x, c.x)};
}
/// c - a * b, rounded once.
inline ScalarLanes fnma(ScalarLanes a, ScalarLanes b, ScalarLanes c) {
  return {__builtin_fmaf(-a.x, b.x, c.x)};
}
inline ScalarLanes sqrt(ScalarLanes a) {
  return {__builtin_sqrtf(a.x)};
}
/// -1 or 1; zeros and nan are returned unchanged.
inline ScalarLanes sign(ScalarLanes a) {
  return {a.x > 0 ? 1.0F : a.x < 0 ? -1.0F : a.x};
}

#if defined(__AVX512F__)

// Two operations use their zero-masking form with nothing masked: GCC 12 warns about the undefined
// source register in the plain form (its bug 105593). The instructions are the same.

struct Lanes {
  static constexpr int kCount = 16;
  __m512 x;

  static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Lanes all(float value) { return {_mm512_set1_ps(value)}; }
  void store(float* p) const { _mm512_storeu_ps(p, x); }
  friend Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.x, b.x)}; }
  friend Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.x, b.x)}; }
  friend Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.x, b.x)}; }
  friend Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.x, b.x)}; }
};

inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.x, b.x, c.x)};
}
inline Lanes fnma(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fnmadd_ps(a.x, b.x, c.x)};
}
inline Lanes sqrt(Lanes a) {
  return {_mm512_maskz_sqrt_ps(0xffff, a.x)};
}
inline Lanes sign(Lanes a) {
  const __m512 one =
      _mm512_mask_mov_ps(a.x, _mm512_cmp_ps_mask(a.x, _mm512_setzero_ps(), _CMP_GT_OQ), _mm512_set1_ps(1));
  return {_mm512_mask_mov_ps(one, _mm512_cmp_ps_mask(a.x, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_set1_ps(-1))};
}

/// Sums of squares in double.
struct SquareSum {
  static constexpr int kCount = 8;
  __m512d sum = _mm512_setzero_pd();

  void add(const float* p) {
    const __m512d x = _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(p));
    sum = _mm512_fmadd_pd(x, x, sum);
  }
  void store(double* p) const { _mm512_storeu_pd(p, sum); }
};

#elif defined(__AVX2__) && defined(__FMA__)

struct Lanes {
  static constexpr int kCount = 8;
  __m256 x;

  static Lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Lanes all(float value) { return {_mm256_set1_ps(value)}; }
  void store(float* p) const { _mm256_storeu_ps(p, x); }
  friend Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.x, b.x)}; }
  friend Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.x, b.x)}; }
  friend Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.x, b.x)}; }
  friend Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.x, b.x)}; }
};

inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.x, b.x, c.x)};
}
inline Lanes fnma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fnmadd_ps(a.x, b.x, c.x)};
}
inline Lanes sqrt(Lanes a) {
  return {_mm256_sqrt_ps(a.x)};
}
inline Lanes sign(Lanes a) {
  const __m256 one = _mm256_blendv_ps(a.x, _mm256_set1_ps(1), _mm256_cmp_ps(a.x, _mm256_setzero_ps(), _CMP_GT_OQ));
  return {_mm256_blendv_ps(one, _mm256_set1_ps(-1), _mm256_cmp_ps(a.x, _mm256_setzero_ps(), _CMP_LT_OQ))};
}

struct SquareSum {
  static constexpr int kCount = 4;
  __m256d sum = _mm256_setzero_pd();

  void add(const float* p) {
    const __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(p));
    sum = _mm256_fmadd_pd(x, x, sum);
  }
  void store(double* p) const { _mm256_storeu_pd(p, sum); }
};

#else

using Lanes = ScalarLanes;

struct SquareSum {
  static constexpr int kCount = 1;
  double sum = 0;

  // The square of a float is exact in double, so this equals a fused multiply-add.
  void add(const float* p) {
    const double x = *p;
    sum += x * x;
  }
  void store(double* p) const { *p = sum; }
};

#endif

} // namespace
} // namespace trireme::kernels
