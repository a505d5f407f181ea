#pragma once

#include <trireme/kernels/dropout_kernels.h>
#include <trireme/kernels/narrow.h>
#include <trireme/kernels/philox.h>

// The loop of dropout.h, written once; included by each dropout_<simd>.cpp.

namespace trireme::kernels {
namespace {

constexpr int kCounters = 16; // of a block: as many as the widest register has words
constexpr int kDropoutBlock = 4 * kCounters;

/// Factors of the elements from kDropoutBlock * block on.
inline void dropout_factors(int64_t block, uint64_t seed, uint32_t threshold, float scale, float* factors) {
  alignas(64) uint32_t words[4][kCounters];
  const uint64_t first = static_cast<uint64_t>(block) * kCounters; // its low words do not overflow in a block
  const auto low = static_cast<uint32_t>(first), high = static_cast<uint32_t>(first >> 32);
  const auto low_key = static_cast<uint32_t>(seed), high_key = static_cast<uint32_t>(seed >> 32);
  for (uint32_t i = 0; i < kCounters; ++i) { // compilers make this one register of counters
    const Words drawn = philox(Words{low + i, high, 0, 0}, low_key, high_key);
    words[0][i] = drawn.a;
    words[1][i] = drawn.b;
    words[2][i] = drawn.c;
    words[3][i] = drawn.d;
  }
  for (int i = 0; i < kCounters; ++i) {
    for (int k = 0; k < 4; ++k) {
      factors[4 * i + k] = words[k][i] < threshold ? 0.0F : scale;
    }
  }
}

template <class Format>
void dropout_elements(const DropoutArgs& args, int64_t begin, int64_t end) {
  using Raw = typename Format::Raw;
  const auto* const x = static_cast<const Raw*>(args.x);
  const auto* const residual = static_cast<const Raw*>(args.residual);
  auto* const y = static_cast<Raw*>(args.y);
  const auto seed = static_cast<uint64_t>(*args.seed);
  const uint32_t threshold = args.threshold;
  const float scale = args.scale;
  alignas(64) float factors[kDropoutBlock];
  for (int64_t block = begin / kDropoutBlock; block * kDropoutBlock < end; ++block) {
    dropout_factors(block, seed, threshold, scale, factors);
    const int64_t base = block * kDropoutBlock;
    if (base >= begin && base + kDropoutBlock <= end) {
      for (int i = 0; i < kDropoutBlock; i += Lanes::kCount) {
        const Lanes value = Format::load(x + base + i), factor = Lanes::load(factors + i);
        Format::store(y + base + i,
                      residual != nullptr ? fma(value, factor, Format::load(residual + base + i)) : value * factor);
      }
      continue;
    }
    const int64_t last = base + kDropoutBlock < end ? base + kDropoutBlock : end;
    for (int64_t i = base > begin ? base : begin; i < last; ++i) {
      const float value = Format::load1(x + i), factor = factors[i - base];
      Format::store1(y + i,
                     residual != nullptr ? multiply_add(value, factor, Format::load1(residual + i)) : value * factor);
    }
  }
}

void dropout_loop(const DropoutArgs& args, int64_t begin, int64_t end) {
  switch (args.element) {
    case Element::bf16:
      return dropout_elements<Bf16>(args, begin, end);
    case Element::f16:
      return dropout_elements<F16>(args, begin, end);
    default:
      return dropout_elements<F32>(args, begin, end);
  }
}

} // namespace
} // namespace trireme::kernels
