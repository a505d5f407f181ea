#pragma once

#include <trireme/kernels/device.h>

#include <cstdint>

// The 8-bit map of StateArray. A code c >= 1 with its highest bit at k is one of 2^k evenly spaced values of
// level z = kTop - k, in (8^-(z+1), 8^-z]. So both directions are a multiply-add with the level's two
// numbers.

namespace trireme::kernels {
namespace {

TRIREME_DEVICE inline uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
TRIREME_DEVICE inline float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
/// a * b + c, rounded once.
TRIREME_DEVICE inline float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

/// With a smaller largest magnitude, a block's smallest values would not be exact: the block is 0.
constexpr float kLeastScale = 0x1p-96F;

constexpr float power(float base, int exponent) {
  float result = 1;
  for (int i = 0; i < exponent; ++i) {
    result *= base;
  }
  return result;
}

template <bool kSigned>
struct CodeMap {
  static constexpr int kTop = kSigned ? 6 : 7;
  static constexpr uint32_t kMagnitude = kSigned ? 0x7f : 0xff;
  /// Values up to half of this become 0, so smaller ones need no level.
  static constexpr float kLeast = kSigned ? 0x1p-21F : 0x1p-24F;
  // Decoding indexes by the lowest bits of the code's exponent as a float, encoding by those of the value's: 127 - 24
  // to 127.
  alignas(64) float slope[16] = {};
  alignas(64) float offset[16] = {};
  alignas(64) float code_slope[32] = {};
  alignas(64) float code_offset[32] = {};

  constexpr CodeMap() {
    for (int i = 0; i < 16; ++i) {
      const int k = (i + 1) % 8; // of exponent 127 + k
      const int z = kTop - k;
      if (z >= 0) {
        slope[i] = 0.875F / power(8, z) / power(2, k);
        offset[i] = (0.875F / power(2, k) - 0.75F) / power(8, z);
      }
    }
    for (int distance = -1; distance < 3 * (kTop + 1); ++distance) { // from 2^0 and above to 2^-24
      const int z = distance < 0 ? 0 : distance / 3;
      const float steps = power(2, kTop - z);
      code_slope[(126 - distance) % 32] = power(8, z) * steps * 8 / 7;
      code_offset[(126 - distance) % 32] = steps * 6 / 7 - 1;
    }
  }
};

template <bool kSigned>
TRIREME_DEVICE inline float decode_code(const CodeMap<kSigned>& map, uint8_t code, float scale) {
  const uint32_t c = code & CodeMap<kSigned>::kMagnitude;
  const auto x = static_cast<float>(c);
  const uint32_t entry = (bits_of(x) >> 23) & 7;
  const float value = (c == 0 ? 0 : multiply_add(map.slope[entry], x, map.offset[entry])) * scale;
  return kSigned ? float_of(bits_of(value) ^ static_cast<uint32_t>(code & 0x80U) << 24) : value;
}

/// `dither` is added to the code before rounding to nearest.
template <bool kSigned>
TRIREME_DEVICE inline uint8_t encode_code(const CodeMap<kSigned>& map, float x, float inverse, float dither) {
  const uint32_t magnitude = bits_of(x) & 0x7fffffffU;
  const float unit = float_of(magnitude) * inverse;
  const float y = unit > CodeMap<kSigned>::kLeast ? unit : CodeMap<kSigned>::kLeast;
  const uint32_t entry = (bits_of(y) >> 23) & 31;
  constexpr float kToInteger =
      12582912.0F; // 1.5 * 2^23: adding it rounds to an integer in the lowest bits, ties to even
  const float rounded = (multiply_add(y, map.code_slope[entry], map.code_offset[entry]) + dither) + kToInteger;
  auto code = static_cast<int>(bits_of(rounded) - bits_of(kToInteger));
  constexpr auto kLargest = static_cast<int>(CodeMap<kSigned>::kMagnitude);
  code = code > kLargest ? kLargest : code;
  if (kSigned) {
    return static_cast<uint8_t>(static_cast<uint32_t>(code) | (bits_of(x) >> 24 & 0x80U));
  }
  return static_cast<uint8_t>(code < 1 && magnitude != 0 ? 1 : code);
}

} // namespace
} // namespace trireme::kernels
