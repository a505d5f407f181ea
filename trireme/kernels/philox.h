#pragma once

#include <trireme/kernels/device.h>

#include <cstdint>

// Random numbers as a function of a counter and a key: the same on every device, in every order. Philox 4x32-10 of
// Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

namespace trireme::kernels {
namespace {

struct Words {
  uint32_t a, b, c, d;
};

/// Four words of a counter of 128 bits and a key of 64.
template <int kRounds = 10>
TRIREME_DEVICE inline Words philox(Words counter, uint32_t low_key, uint32_t high_key) {
  if constexpr (kRounds == 0) {
    return counter;
  } else {
    const uint64_t first = static_cast<uint64_t>(counter.a) * 0xD2511F53U;
    const uint64_t second = static_cast<uint64_t>(counter.c) * 0xCD9E8D57U;
    const Words next = {static_cast<uint32_t>(second >> 32) ^ counter.b ^ low_key, static_cast<uint32_t>(second),
                        static_cast<uint32_t>(first >> 32) ^ counter.d ^ high_key, static_cast<uint32_t>(first)};
    return philox<kRounds - 1>(next, low_key + 0x9E3779B9U, high_key + 0xBB67AE85U);
  }
}

/// The words of elements 4 block to 4 block + 3 of a tensor.
TRIREME_DEVICE inline Words random_words(uint64_t block, uint64_t seed) {
  return philox(Words{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

} // namespace
} // namespace trireme::kernels
