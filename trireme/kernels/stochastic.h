#pragma once

#include <trireme/kernels/code_map.h>

#include <cstdint>

// Stochastic rounding of optimizer states: up with a probability equal to the distance from below, so that steps too
// small for the type count on average. The random bits are a hash of the number and of the step's seed: the same for
// every cut into ranges, shards and registers, and in a resumed run. Each step has a new seed, so errors do not
// accumulate in one direction.

namespace trireme::kernels {
namespace {

/// Sixteen random bits for a number: MurmurHash3's last mixing steps (A. Appleby, public domain).
TRIREME_DEVICE inline uint32_t random_bits(uint32_t bits, uint32_t seed) {
  uint32_t hash = bits ^ seed;
  hash = (hash ^ hash >> 16) * 0x85ebca6bU;
  hash = (hash ^ hash >> 13) * 0xc2b2ae35U;
  return hash >> 16;
}

TRIREME_DEVICE inline uint16_t stochastic_bf16(float x, uint32_t seed) {
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>(x != x ? 0x7fc0U : (bits + random_bits(bits, seed)) >> 16);
}

/// Added before rounding x's code to nearest, makes it stochastic. In (-0.5, 0.5) with 15 bits, so that in fp32 255
/// plus the smallest is above 254.5, and an exact code does not change.
TRIREME_DEVICE inline float dither(float x, uint32_t seed) {
  return multiply_add(static_cast<float>(random_bits(bits_of(x), seed) >> 1), 0x1p-15F, 0x1p-16F - 0.5F);
}

} // namespace
} // namespace trireme::kernels
