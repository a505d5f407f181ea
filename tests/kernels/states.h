#pragma once

#include <trireme/kernels/kernels.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace trireme::kernels {

inline std::vector<Simd> sets_here() {
  std::vector<Simd> sets = {Simd::scalar};
  for (Simd simd : {Simd::avx2, Simd::avx512}) {
    if (supported(simd)) {
      sets.push_back(simd);
    }
  }
  return sets;
}

// To bf16 or f16, as combine() rounds; its own test compares that with the definition.
inline std::vector<uint16_t> narrowed(const std::vector<float>& values, Element type) {
  std::vector<uint16_t> out(values.size());
  SgdArgs copy; // param - 0 * g, written as a copy
  std::vector<float> same = values;
  copy.param = same.data();
  copy.grad = values.data();
  copy.param_copy = out.data();
  copy.copy_type = type;
  kernel_set(Simd::scalar).sgd(copy, 0, static_cast<int64_t>(values.size()));
  return out;
}

inline float widened(uint16_t x, Element type) {
  if (type == Element::bf16) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  const int exponent = (x >> 10) & 31;
  const double fraction = (x & 1023) / 1024.0;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return static_cast<float>(x & 0x8000 ? -magnitude : magnitude);
}

inline constexpr uint32_t kSeed = 0x9e3779b9;

/// Stochastic rounding as kernels/stochastic.h defines it.
inline uint16_t stochastic(float x, uint32_t seed) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  uint32_t hash = bits ^ seed;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bU;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35U;
  return static_cast<uint16_t>((bits + (hash >> 16)) >> 16);
}

struct State {
  State(std::vector<float> values, Element type, bool is_signed, uint32_t seed = kToNearest)
      : type(type), is_signed(is_signed), floats(std::move(values)) {
    if (type == Element::bf16 && seed == kToNearest) {
      halves = narrowed(floats, type);
    } else if (type == Element::bf16) {
      for (const float x : floats) {
        halves.push_back(stochastic(x, seed));
      }
    } else if (type == Element::u8) {
      codes.resize(floats.size());
      scales.resize((floats.size() + kStateBlock - 1) / kStateBlock);
      kernel_set(Simd::scalar)
          .encode_state(array(), is_signed, 0, static_cast<int64_t>(floats.size()), floats.data(), seed);
    }
  }
  StateArray array() {
    void* values = type == Element::f32    ? static_cast<void*>(floats.data())
                   : type == Element::bf16 ? static_cast<void*>(halves.data())
                                           : codes.data();
    return {values, type, scales.data()};
  }
  std::vector<float> read() {
    std::vector<float> out(floats.size());
    kernel_set(Simd::scalar).decode_state(array(), is_signed, 0, static_cast<int64_t>(out.size()), out.data());
    return out;
  }
  bool operator==(const State& other) const {
    return (type != Element::f32 ||
            std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0) &&
           halves == other.halves && codes == other.codes && scales == other.scales;
  }

  Element type;
  bool is_signed;
  std::vector<float> floats;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

} // namespace trireme::kernels
