#pragma once

#include <trireme/kernels/lanes.h>

#include <cstdint>

// Conversion of signs to bits and back.

namespace trireme::kernels {
namespace {

/// Bit k: lane k >= 0; true for both zeros, false for NaN.
inline uint32_t at_least_zero(ScalarLanes x) {
  return x.x >= 0 ? 1 : 0;
}
/// Bit k of `bits` ? a : b.
inline ScalarLanes choose(uint32_t bits, ScalarLanes a, ScalarLanes b) {
  return (bits & 1) != 0 ? a : b;
}

#if defined(__AVX512F__)

inline uint32_t at_least_zero(Lanes x) {
  return _mm512_cmp_ps_mask(x.x, _mm512_setzero_ps(), _CMP_GE_OQ);
}
inline Lanes choose(uint32_t bits, Lanes a, Lanes b) {
  return {_mm512_mask_mov_ps(b.x, static_cast<__mmask16>(bits), a.x)};
}

#elif defined(__AVX2__) && defined(__FMA__)

inline uint32_t at_least_zero(Lanes x) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.x, _mm256_setzero_ps(), _CMP_GE_OQ)));
}
inline Lanes choose(uint32_t bits, Lanes a, Lanes b) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane), lane);
  return {_mm256_blendv_ps(b.x, a.x, _mm256_castsi256_ps(set))};
}

#endif

void pack_signs(float* x, int64_t n, float scale, uint8_t* bits) {
  int64_t i = 0;
  if constexpr (Lanes::kCount >= 8) { // x86: the low byte is first
    for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
      const Lanes value = Lanes::load(x + i);
      const uint32_t signs = at_least_zero(value);
      __builtin_memcpy(bits + i / 8, &signs, Lanes::kCount / 8);
      (value - choose(signs, Lanes::all(scale), Lanes::all(-scale))).store(x + i);
    }
  }
  for (; i < n; i += 8) {
    uint32_t byte = 0;
    for (int64_t k = 0; k < 8 && i + k < n; ++k) {
      const ScalarLanes value = ScalarLanes::load(x + i + k);
      const uint32_t sign = at_least_zero(value);
      byte |= sign << k;
      (value - choose(sign, ScalarLanes::all(scale), ScalarLanes::all(-scale))).store(x + i + k);
    }
    bits[i / 8] = static_cast<uint8_t>(byte);
  }
}

void add_signs(const uint8_t* bits, int64_t n, float scale, float* sum) {
  int64_t i = 0;
  if constexpr (Lanes::kCount >= 8) {
    for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
      uint32_t signs = 0;
      __builtin_memcpy(&signs, bits + i / 8, Lanes::kCount / 8);
      (Lanes::load(sum + i) + choose(signs, Lanes::all(scale), Lanes::all(-scale))).store(sum + i);
    }
  }
  for (; i < n; ++i) {
    (ScalarLanes::load(sum + i) + choose(bits[i / 8] >> (i % 8), ScalarLanes::all(scale), ScalarLanes::all(-scale)))
        .store(sum + i);
  }
}

} // namespace
} // namespace trireme::kernels
