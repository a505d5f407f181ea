#pragma once

#include <trireme/kernels/code_map.h>
#include <trireme/kernels/lanes.h>
#include <trireme/kernels/narrow.h>
#include <trireme/kernels/optimizer_args.h>
#include <trireme/kernels/stochastic.h>

#include <cstdint>

// Blocks of 8-bit states.

namespace trireme::kernels {
namespace {

template <bool kSigned>
constexpr CodeMap<kSigned> kCodeMap;

#if defined(__AVX512F__)

template <bool kSigned>
struct WideCodes {
  static constexpr int kCount = 16;
  const __m512 slope = _mm512_load_ps(kCodeMap<kSigned>.slope);
  const __m512 offset = _mm512_load_ps(kCodeMap<kSigned>.offset);
  const __m512 code_slope[2] = {_mm512_load_ps(kCodeMap<kSigned>.code_slope),
                                _mm512_load_ps(kCodeMap<kSigned>.code_slope + 16)};
  const __m512 code_offset[2] = {_mm512_load_ps(kCodeMap<kSigned>.code_offset),
                                 _mm512_load_ps(kCodeMap<kSigned>.code_offset + 16)};

  void decode(const uint8_t* from, float scale, float* to) const {
    const __m512i all = _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m512i c = _mm512_and_si512(all, _mm512_set1_epi32(CodeMap<kSigned>::kMagnitude));
    const __m512 x = _mm512_maskz_cvtepi32_ps(0xffff, c);
    const __m512i entry = _mm512_maskz_srli_epi32(0xffff, _mm512_castps_si512(x), 23);
    const __m512 a = _mm512_maskz_permutexvar_ps(0xffff, entry, slope);
    const __m512 b = _mm512_maskz_permutexvar_ps(0xffff, entry, offset);
    const __m512 unit = _mm512_maskz_fmadd_ps(_mm512_test_epi32_mask(c, c), a, x, b);
    __m512 value = _mm512_mul_ps(unit, _mm512_set1_ps(scale));
    if constexpr (kSigned) {
      const __m512i sign = _mm512_maskz_slli_epi32(0xffff, _mm512_and_si512(all, _mm512_set1_epi32(0x80)), 24);
      value = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(value), sign));
    }
    _mm512_storeu_ps(to, value);
  }

  template <bool kStochastic>
  void encode(const float* from, float inverse, uint32_t seed, uint8_t* to) const {
    const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(from));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512 unit = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(inverse));
    const __m512 y = _mm512_maskz_max_ps(0xffff, unit, _mm512_set1_ps(CodeMap<kSigned>::kLeast));
    const __m512i entry = _mm512_maskz_srli_epi32(0xffff, _mm512_castps_si512(y), 23);
    const __m512 a = _mm512_permutex2var_ps(code_slope[0], entry, code_slope[1]);
    const __m512 b = _mm512_permutex2var_ps(code_offset[0], entry, code_offset[1]);
    __m512 exact = _mm512_fmadd_ps(y, a, b);
    if constexpr (kStochastic) {
      exact = _mm512_add_ps(exact, dither(bits, seed));
    }
    __m512i code = _mm512_maskz_cvtps_epi32(0xffff, exact);
    code = _mm512_maskz_min_epi32(0xffff, code, _mm512_set1_epi32(CodeMap<kSigned>::kMagnitude));
    if constexpr (kSigned) {
      const __m512i sign = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, bits, 24), _mm512_set1_epi32(0x80));
      code = _mm512_or_si512(code, sign);
    } else {
      code = _mm512_mask_max_epi32(code, _mm512_test_epi32_mask(magnitude, magnitude), code, _mm512_set1_epi32(1));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xffff, code));
  }
};

/// Sixteen of the largest magnitudes so far, as bits: positive floats are ordered alike, and nan is largest.
struct Largest {
  static constexpr int kCount = 16;
  __m512i bits = _mm512_setzero_si512();

  void add(const float* from) {
    const __m512i magnitude =
        _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(from)), _mm512_set1_epi32(0x7fffffff));
    bits = _mm512_maskz_max_epi32(0xffff, bits, magnitude);
  }
  uint32_t get() const {
    alignas(64) int32_t lanes[kCount];
    _mm512_store_si512(lanes, bits);
    int32_t largest = 0;
    for (const int32_t lane : lanes) {
      largest = lane > largest ? lane : largest;
    }
    return static_cast<uint32_t>(largest);
  }
};

#elif defined(__AVX2__) && defined(__FMA__)

template <bool kSigned>
struct WideCodes {
  static constexpr int kCount = 8;
  const __m256 slope = _mm256_load_ps(kCodeMap<kSigned>.slope);
  const __m256 offset = _mm256_load_ps(kCodeMap<kSigned>.offset);

  void decode(const uint8_t* from, float scale, float* to) const {
    const __m256i all = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m256i c = _mm256_and_si256(all, _mm256_set1_epi32(CodeMap<kSigned>::kMagnitude));
    const __m256 x = _mm256_cvtepi32_ps(c);
    const __m256i entry = _mm256_srli_epi32(_mm256_castps_si256(x), 23);
    const __m256 a = _mm256_permutevar8x32_ps(slope, entry);
    const __m256 b = _mm256_permutevar8x32_ps(offset, entry);
    const __m256 zero = _mm256_castsi256_ps(_mm256_cmpeq_epi32(c, _mm256_setzero_si256()));
    const __m256 unit = _mm256_andnot_ps(zero, _mm256_fmadd_ps(a, x, b));
    __m256 value = _mm256_mul_ps(unit, _mm256_set1_ps(scale));
    if constexpr (kSigned) {
      const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(all, _mm256_set1_epi32(0x80)), 24);
      value = _mm256_xor_ps(value, _mm256_castsi256_ps(sign));
    }
    _mm256_storeu_ps(to, value);
  }

  template <bool kStochastic>
  void encode(const float* from, float inverse, uint32_t seed, uint8_t* to) const {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(from));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256 unit = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(inverse));
    const __m256 y = _mm256_max_ps(unit, _mm256_set1_ps(CodeMap<kSigned>::kLeast));
    const __m256i entry = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(y), 23), _mm256_set1_epi32(31));
    const __m256 a = _mm256_i32gather_ps(kCodeMap<kSigned>.code_slope, entry, 4);
    const __m256 b = _mm256_i32gather_ps(kCodeMap<kSigned>.code_offset, entry, 4);
    __m256 exact = _mm256_fmadd_ps(y, a, b);
    if constexpr (kStochastic) {
      exact = _mm256_add_ps(exact, dither(bits, seed));
    }
    __m256i code = _mm256_cvtps_epi32(exact);
    code = _mm256_min_epi32(code, _mm256_set1_epi32(CodeMap<kSigned>::kMagnitude));
    if constexpr (kSigned) {
      code = _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80)));
    } else {
      const __m256i zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
      code = _mm256_max_epi32(code, _mm256_andnot_si256(zero, _mm256_set1_epi32(1)));
    }
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }
};

struct Largest {
  static constexpr int kCount = 8;
  __m256i bits = _mm256_setzero_si256();

  void add(const float* from) {
    const __m256i magnitude =
        _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(from)), _mm256_set1_epi32(0x7fffffff));
    bits = _mm256_max_epi32(bits, magnitude);
  }
  uint32_t get() const {
    alignas(32) int32_t lanes[kCount];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), bits);
    int32_t largest = 0;
    for (const int32_t lane : lanes) {
      largest = lane > largest ? lane : largest;
    }
    return static_cast<uint32_t>(largest);
  }
};

#else

template <bool kSigned>
struct WideCodes {
  static constexpr int kCount = 1;

  void decode(const uint8_t* from, float scale, float* to) const { *to = decode_code(kCodeMap<kSigned>, *from, scale); }
  template <bool kStochastic>
  void encode(const float* from, float inverse, uint32_t seed, uint8_t* to) const {
    *to = encode_code(kCodeMap<kSigned>, *from, inverse, kStochastic ? dither(*from, seed) : 0.0F);
  }
};

struct Largest {
  static constexpr int kCount = 1;
  uint32_t bits = 0;

  void add(const float* from) {
    const uint32_t magnitude = bits_of(*from) & 0x7fffffffU;
    bits = magnitude > bits ? magnitude : bits;
  }
  uint32_t get() const { return bits; }
};

#endif

/// Requires n <= kStateBlock.
template <bool kSigned>
inline void decode_block(const uint8_t* codes, float scale, int64_t n, float* to) {
  const WideCodes<kSigned> wide;
  int64_t i = 0;
  for (; i + wide.kCount <= n; i += wide.kCount) {
    wide.decode(codes + i, scale, to + i);
  }
  for (; i < n; ++i) {
    to[i] = decode_code(kCodeMap<kSigned>, codes[i], scale);
  }
}

inline float largest_magnitude(const float* from, int64_t n) {
  Largest largest;
  int64_t i = 0;
  for (; i + largest.kCount <= n; i += largest.kCount) {
    largest.add(from + i);
  }
  uint32_t bits = largest.get();
  for (; i < n; ++i) {
    const uint32_t magnitude = bits_of(from[i]) & 0x7fffffffU;
    bits = magnitude > bits ? magnitude : bits;
  }
  return float_of(bits);
}

template <bool kSigned, bool kStochastic>
inline void encode_codes(const float* from, float inverse, int64_t n, uint32_t seed, uint8_t* codes) {
  const WideCodes<kSigned> wide;
  int64_t i = 0;
  for (; i + wide.kCount <= n; i += wide.kCount) {
    wide.template encode<kStochastic>(from + i, inverse, seed, codes + i);
  }
  for (; i < n; ++i) {
    codes[i] = encode_code(kCodeMap<kSigned>, from[i], inverse, kStochastic ? dither(from[i], seed) : 0.0F);
  }
}

/// Returns the block's scale.
template <bool kSigned>
inline float encode_block(const float* from, int64_t n, uint32_t seed, uint8_t* codes) {
  const float scale = largest_magnitude(from, n);
  if (!(scale >= kLeastScale) || scale > 3.4028235e38F) {
    __builtin_memset(codes, 0, static_cast<size_t>(n));
    return scale < kLeastScale ? 0 : scale;
  }
  if (seed == kToNearest) {
    encode_codes<kSigned, false>(from, 1 / scale, n, seed, codes);
  } else {
    encode_codes<kSigned, true>(from, 1 / scale, n, seed, codes);
  }
  return scale;
}

} // namespace
} // namespace trireme::kernels
