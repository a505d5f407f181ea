// The random words of dropout are Philox's, and its loops give the same bits whatever the instructions and the ranges.
#include "fused_arrays.h"

#include <trireme/kernels/dropout.h>
#include <trireme/kernels/philox.h>

#include <algorithm>
#include <vector>

namespace trireme::kernels {
namespace {

std::vector<uint32_t> listed(const Words& words) {
  return {words.a, words.b, words.c, words.d};
}

// Known answers of the authors' library: Random123, tests/kat_vectors.
TEST(PhiloxTest, KnownAnswers) {
  using Four = std::vector<uint32_t>;
  EXPECT_EQ(listed(philox({0, 0, 0, 0}, 0, 0)), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(listed(philox({ones, ones, ones, ones}, ones, ones)),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(listed(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0)),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

constexpr int64_t kDropped = 1000; // no multiple of what a loop draws at once
const int64_t dropout_seed = 0x123456789abcdef;

/// 16-bit values are bf16's bits, which f16 reads as other numbers.
Bytes run_dropout(Simd simd, Element element, bool adds, const std::vector<int64_t>& cuts) {
  const Element width = element == Element::f16 ? Element::bf16 : element;
  Array x(width, random_values(kDropped, 1)), residual(width, random_values(kDropped, 2)), y(width, kDropped);
  DropoutArgs args;
  args.x = x.data();
  args.residual = adds ? residual.data() : nullptr;
  args.y = y.data();
  args.seed = &dropout_seed;
  args.element = element;
  args.set_probability(0.3);
  for (size_t i = 1; i < cuts.size(); ++i) {
    dropout_kernel(simd)(args, cuts[i - 1], cuts[i]);
  }
  return y.bytes();
}

TEST(DropoutKernelTest, InstructionsAndRangesDoNotChangeABit) {
  for (const Element element : {Element::f32, Element::bf16, Element::f16}) {
    for (const bool adds : {false, true}) {
      const Bytes expected = run_dropout(Simd::scalar, element, adds, {0, kDropped});
      for (const Simd simd : {Simd::scalar, Simd::avx2, Simd::avx512}) {
        if (supported(simd)) {
          EXPECT_TRUE(run_dropout(simd, element, adds, {0, kDropped}) == expected) << name(simd);
          EXPECT_TRUE(run_dropout(simd, element, adds, {0, 5, 64, 130, 640, 641, kDropped}) == expected) << name(simd);
        }
      }
    }
  }
}

TEST(DropoutKernelTest, AnElementIsDroppedByItsWord) {
  Array x(Element::f32, random_values(kDropped, 1)), y(Element::f32, kDropped);
  DropoutArgs args;
  args.x = x.data();
  args.y = y.data();
  args.seed = &dropout_seed;
  for (const double p : {0.0, 0.3, 1.0}) {
    args.set_probability(p);
    dropout_kernel(active_simd())(args, 0, kDropped);
    for (int64_t i = 0; i < kDropped; ++i) {
      const uint32_t word =
          listed(random_words(static_cast<uint64_t>(i) / 4, dropout_seed))[static_cast<size_t>(i % 4)];
      const bool kept = static_cast<double>(word) >= p * 0x1p32;
      const auto factor = static_cast<float>(kept ? 1 / (1 - p) : 0);
      ASSERT_EQ(y.at(static_cast<size_t>(i)), x.at(static_cast<size_t>(i)) * factor) << i;
    }
  }
}

} // namespace
} // namespace trireme::kernels
