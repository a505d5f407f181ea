// bf16 and 8-bit states by themselves: stochastic rounding, and blocks of 8 bits.

#include "states.h"

#include <trireme/kernels/stochastic.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace trireme::kernels {
namespace {

/// Rounded with many seeds: always to a neighbour, on average to itself, and exact numbers always to themselves.
TEST(StochasticRoundingTest, IsRightOnAverageInEverySet) {
  std::mt19937 generator(7);
  std::vector<float> values = {1,    0.999F,   0.9985F, -0.3F,   1e-12F, -3.14159F, 0.0F,  0.001F, -0.00017F,
                               0.5F, 1.0F / 3, 0.02F,   0.0625F, 0.7F,   -0.011F,   0.19F, 0.44F};
  const auto n = static_cast<int64_t>(values.size());
  constexpr int kSeeds = 20000;
  for (const Element type : {Element::bf16, Element::u8}) {
    for (const bool is_signed : {true, false}) {
      std::vector<float> numbers = values;
      for (float& x : numbers) {
        x = is_signed ? x : std::abs(x);
      }
      if (type == Element::u8) {
        numbers[5] = 1; // the block's largest
      }
      State nearest(numbers, type, is_signed);
      std::vector<double> sums(numbers.size()), least(numbers.size(), 1e9), most(numbers.size(), -1e9);
      for (int k = 0; k < kSeeds; ++k) {
        const uint32_t seed = static_cast<uint32_t>(generator()) | 1U;
        State wanted(numbers, type, is_signed, seed);
        const std::vector<float> rounded = wanted.read();
        for (size_t i = 0; i < numbers.size(); ++i) {
          sums[i] += rounded[i];
          least[i] = std::min<double>(least[i], rounded[i]);
          most[i] = std::max<double>(most[i], rounded[i]);
        }
        if (k < 20) {
          for (const Simd simd : sets_here()) {
            State found(numbers, type, is_signed);
            kernel_set(simd).encode_state(found.array(), is_signed, 0, n, numbers.data(), seed);
            EXPECT_TRUE(found == wanted) << name(simd);
          }
        }
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (type == Element::u8 && std::abs(numbers[i]) < 1e-9) {
          continue; // less than the smallest code: rounds to it, or to 0 with a sign
        }
        const double unit = most[i] - least[i]; // between the two neighbours
        EXPECT_LE(least[i], numbers[i]);
        EXPECT_GE(most[i], numbers[i]);
        EXPECT_LE(unit, (type == Element::bf16 ? 1.0 / 128 : 0.9) * std::abs(numbers[i])) << numbers[i];
        EXPECT_NEAR(sums[i] / kSeeds, numbers[i], 4 * unit * 0.5 / std::sqrt(kSeeds) + 1e-7 * std::abs(numbers[i]))
            << numbers[i];
      }
      const std::vector<float> exact = nearest.read();
      if (type == Element::bf16) {
        EXPECT_EQ(State(exact, type, is_signed, kSeed).read(), exact);
      }
    }
  }
}

/// The map's values, by asking for a block of all codes with scale 1.
std::vector<float> code_values(Simd simd, bool is_signed) {
  std::vector<uint8_t> codes(256);
  for (int c = 0; c < 256; ++c) {
    codes[c] = static_cast<uint8_t>(c);
  }
  float scale = 1;
  std::vector<float> values(256);
  kernel_set(simd).decode_state({codes.data(), Element::u8, &scale}, is_signed, 0, 256, values.data());
  return values;
}

// Every code is whole, the largest too: where fp32 is coarsest, the least that is added must not reach the middle
// between two codes.
TEST(StochasticRoundingTest, AWholeCodeStaysWhatItIs) {
  int moved = 0;
  for (uint32_t seed = 1; seed < 4'000'000; seed += 2) {
    const float noisy = 255.0F + dither(1.0F, seed);
    moved += noisy > 254.5F && noisy < 255.5F ? 0 : 1;
  }
  EXPECT_EQ(moved, 0);
}

TEST(BlockwiseTest, ValuesAreTheDynamicTree) {
  for (const Simd simd : sets_here()) {
    for (const bool is_signed : {false, true}) {
      const std::vector<float> values = code_values(simd, is_signed);
      const int largest = is_signed ? 127 : 255;
      const int top = is_signed ? 6 : 7;
      EXPECT_EQ(values[0], 0);
      EXPECT_EQ(values[1], std::pow(8.0, -top));
      EXPECT_EQ(values[largest], 1);
      EXPECT_EQ(values[largest / 2], 0.125);
      for (int c = 1; c <= largest; ++c) {
        const int k = static_cast<int>(std::log2(c));
        const double wanted = std::pow(8.0, k - top) * (0.125 + 0.875 * (c - (1 << k) + 1) / (1 << k));
        EXPECT_EQ(values[c], wanted) << c;
        EXPECT_GT(values[c], values[c - 1]);
        if (is_signed) {
          EXPECT_EQ(values[c + 128], -values[c]);
        }
      }
    }
  }
}

std::vector<uint8_t> encoded(Simd simd, bool is_signed, const std::vector<float>& values, std::vector<float>& scales) {
  std::vector<uint8_t> codes(values.size(), 99);
  scales.assign((values.size() + kStateBlock - 1) / kStateBlock, -1);
  kernel_set(simd).encode_state({codes.data(), Element::u8, scales.data()}, is_signed, 0,
                                static_cast<int64_t>(values.size()), values.data(), kToNearest);
  return codes;
}

TEST(BlockwiseTest, EncodesToTheNearestValue) {
  std::mt19937 generator(3);
  for (const bool is_signed : {false, true}) {
    const std::vector<float> map = code_values(Simd::scalar, is_signed);
    std::vector<float> values(10 * kStateBlock + 33);
    for (float& x : values) {
      x = std::exp2(-static_cast<float>(generator() % 100000) / 4000.0F);
      x = is_signed && generator() % 2 == 0 ? -x : x;
    }
    std::vector<float> scales;
    const std::vector<uint8_t> codes = encoded(Simd::scalar, is_signed, values, scales);
    for (size_t i = 0; i < values.size(); ++i) {
      const float unit = values[i] / scales[i / kStateBlock];
      double nearest = 10;
      for (int c = is_signed ? 0 : 1; c < 256; ++c) {
        nearest = std::min(nearest, std::abs(static_cast<double>(map[c]) - unit));
      }
      EXPECT_LE(std::abs(static_cast<double>(map[codes[i]]) - unit), nearest + 1e-6) << values[i];
    }
    for (const Simd simd : sets_here()) {
      std::vector<float> own_scales;
      EXPECT_EQ(encoded(simd, is_signed, values, own_scales), codes) << name(simd);
      EXPECT_EQ(own_scales, scales);
    }
  }
}

TEST(BlockwiseTest, EncodingADecodedBlockGivesTheSameCodes) {
  std::mt19937 generator(4);
  for (const bool is_signed : {false, true}) {
    for (const float scale : {1.0F, 0.3F, 1.17e-38F * 1e10F, 3.3e38F, 7.77e-5F}) {
      std::vector<uint8_t> codes(3 * kStateBlock + 5);
      for (uint8_t& c : codes) {
        c = static_cast<uint8_t>(generator());
      }
      for (size_t i = 0; i < codes.size(); i += kStateBlock) {
        codes[i] = is_signed ? 127 : 255; // a block has its largest magnitude
      }
      std::vector<float> scales(4, scale), values(codes.size()), again;
      kernel_set(Simd::scalar)
          .decode_state({codes.data(), Element::u8, scales.data()}, is_signed, 0, static_cast<int64_t>(codes.size()),
                        values.data());
      EXPECT_EQ(encoded(active_simd(), is_signed, values, again), codes) << scale;
      EXPECT_EQ(again, scales);
    }
  }
}

TEST(BlockwiseTest, ExtremeBlocks) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Simd simd : sets_here()) {
    for (const bool is_signed : {false, true}) {
      for (const int64_t bad : {3, 200}) {
        for (const float extreme : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
          std::vector<float> values(kStateBlock + 10, 0.5F), scales;
          values[bad] = extreme;
          std::vector<uint8_t> codes = encoded(simd, is_signed, values, scales);
          kernel_set(simd).decode_state({codes.data(), Element::u8, scales.data()}, is_signed, 0,
                                        static_cast<int64_t>(values.size()), values.data());
          EXPECT_TRUE(std::isnan(values[0])) << "does not look like a state any more";
          EXPECT_EQ(values[kStateBlock], 0.5F);
        }
      }
      std::vector<float> tiny(20, 1e-30F), scales;
      EXPECT_EQ(encoded(simd, is_signed, tiny, scales), std::vector<uint8_t>(20));
      EXPECT_EQ(scales[0], 0);
      std::vector<float> wide = {1, 1e-20F, 0};
      const std::vector<uint8_t> codes = encoded(simd, is_signed, wide, scales);
      EXPECT_EQ(codes, (std::vector<uint8_t>{static_cast<uint8_t>(is_signed ? 127 : 255),
                                             static_cast<uint8_t>(is_signed ? 0 : 1), 0}))
          << "a second moment above 0 stays above 0";
    }
  }
}

TEST(OptimizerTypesTest, LionStaysWhereTheAverageIsZeroAndShowsNaN) {
  for (const Simd simd : sets_here()) {
    std::vector<float> param(40, 1), grad(40, 0), m(40, 0);
    grad[7] = std::numeric_limits<float>::quiet_NaN();
    grad[9] = -1e-30F;
    LionArgs args;
    args.param = param.data();
    args.grad = grad.data();
    args.exp_avg = {m.data()};
    args.lr = 0.5F;
    args.one_minus_beta1 = 0.1F;
    args.one_minus_beta2 = 0.1F;
    kernel_set(simd).lion(args, 0, 40);
    EXPECT_EQ(param[0], 1);
    EXPECT_TRUE(std::isnan(param[7]));
    EXPECT_EQ(param[9], 1.5F);
  }
}

} // namespace
} // namespace trireme::kernels
