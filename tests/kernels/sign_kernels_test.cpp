#include <trireme/kernels/kernels.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace trireme::kernels {
namespace {

constexpr float kBesides = 77.25F;
constexpr uint8_t kByteBesides = 0xa5;

/// Numbers of many sizes; some are zeros of either sign, infinite or NaN.
std::vector<float> mixed_numbers(int64_t n) {
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) {
    const unsigned kind = generator() % 16;
    value = kind == 0   ? 0.0F
            : kind == 1 ? -0.0F
            : kind == 2 ? std::numeric_limits<float>::quiet_NaN()
                        : normal(generator) * std::exp2(static_cast<float>(generator() % 9) - 4);
    value = kind == 3 ? -std::numeric_limits<float>::infinity() : value;
  }
  return x;
}

template <class T>
bool same_memory(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class SignKernelsTest : public testing::TestWithParam<Simd> {
 protected:
  void SetUp() override {
    if (!supported(GetParam())) {
      GTEST_SKIP() << name(GetParam()) << " does not run here";
    }
  }
};

TEST_P(SignKernelsTest, PackAndAddAreTheFormulaToTheBit) {
  constexpr float kScale = 0.37F;
  for (int64_t n = 0; n <= 150; ++n) {
    for (const int64_t begin : {0, 1, 5}) {
      const std::vector<float> values = mixed_numbers(n);
      std::vector<float> x(static_cast<size_t>(n + 8), kBesides), rest = x, sum = x, wanted_sum = x;
      std::vector<uint8_t> bits(static_cast<size_t>((n + 7) / 8 + 2), kByteBesides), wanted = bits;
      for (int64_t i = 0; i < n; ++i) {
        x[begin + i] = values[i];
        const bool plus = values[i] >= 0;
        rest[begin + i] = values[i] - (plus ? kScale : -kScale);
        wanted_sum[begin + i] = kBesides + (plus ? kScale : -kScale);
        wanted[1 + i / 8] = static_cast<uint8_t>((i % 8 == 0 ? 0 : wanted[1 + i / 8]) | (plus ? 1 << (i % 8) : 0));
      }
      kernel_set(GetParam()).pack_signs(x.data() + begin, n, kScale, bits.data() + 1);
      EXPECT_TRUE(same_memory(x, rest)) << "n " << n << ", begin " << begin;
      EXPECT_EQ(bits, wanted) << "n " << n << ", begin " << begin;
      kernel_set(GetParam()).add_signs(bits.data() + 1, n, kScale, sum.data() + begin);
      EXPECT_TRUE(same_memory(sum, wanted_sum)) << "n " << n << ", begin " << begin;
    }
  }
}

TEST_P(SignKernelsTest, ProductsWithPowersAreExactAndZeroIsZero) {
  for (int64_t n = 0; n <= 50; ++n) {
    std::vector<float> x(static_cast<size_t>(n + 4), kBesides), there = x, back = x;
    std::vector<uint8_t> exponents(static_cast<size_t>(n + 1), kByteBesides);
    for (int64_t i = 0; i < n; ++i) {
      exponents[i + 1] = static_cast<uint8_t>(i % 7 == 3 ? 0 : 90 + 5 * i % 60);
      const float power = exponents[i + 1] == 0 ? 0 : std::ldexp(1.0F, exponents[i + 1] - 127);
      x[i + 2] = 0.3F * static_cast<float>(i + 1) - 5;
      there[i + 2] = x[i + 2] * power;
      back[i + 2] = power == 0 ? 0 : x[i + 2];
    }
    kernel_set(GetParam()).scale_by_powers(exponents.data() + 1, n, false, x.data() + 2);
    EXPECT_TRUE(std::equal(x.begin(), x.end(), there.begin())) << n;
    kernel_set(GetParam()).scale_by_powers(exponents.data() + 1, n, true, x.data() + 2);
    EXPECT_TRUE(std::equal(x.begin(), x.end(), back.begin())) << n;
  }
}

// Also past the ends of the pieces in which gradients of low precision are widened.
TEST_P(SignKernelsTest, MomentaAreTheFormulaToTheBit) {
  constexpr float kScale = 0.3F, kBeta = 0.9F;
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  for (const int64_t n : {0, 1, 7, 8, 15, 16, 17, 64, 150, 1024, 1025, 2100}) {
    for (const int64_t begin : {0, 3}) {
      const auto count = static_cast<size_t>(begin + n);
      std::vector<float> wide(count), first(count);
      std::vector<uint16_t> narrow(count);
      std::vector<uint8_t> exponents(count);
      for (size_t i = 0; i < count; ++i) {
        wide[i] = normal(generator);
        first[i] = normal(generator);
        exponents[i] = static_cast<uint8_t>(i % 7 == 3 ? 0 : 90 + 5 * i % 60);
        narrow[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, wide[i]) >> 16);
      }
      for (int variant = 0; variant < 8; ++variant) {
        const bool of_bf16 = (variant & 1) != 0, has_first = (variant & 2) != 0, has_units = (variant & 4) != 0;
        MomentumArgs args;
        args.grad = of_bf16 ? static_cast<const void*>(narrow.data()) : wide.data();
        args.grad_type = of_bf16 ? Element::bf16 : Element::f32;
        args.grad_scale = kScale;
        args.first = has_first ? first.data() : nullptr;
        args.beta1 = kBeta;
        args.exponents = has_units ? exponents.data() : nullptr;
        std::vector<float> found(static_cast<size_t>(n + 5), kBesides), wanted = found;
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(begin + i);
          float x = (of_bf16 ? __builtin_bit_cast(float, static_cast<uint32_t>(narrow[at]) << 16) : wide[at]) * kScale;
          x = has_first ? std::fma(first[at], kBeta, x) : x;
          x = !has_units ? x : exponents[at] == 0 ? x * 0 : std::ldexp(x, 127 - exponents[at]);
          wanted[static_cast<size_t>(i + 2)] = kBesides + x;
        }
        kernel_set(GetParam()).add_momentum(args, begin, begin + n, found.data() + 2);
        EXPECT_TRUE(same_memory(found, wanted)) << "n " << n << ", begin " << begin << ", variant " << variant;
      }
    }
  }
}

TEST_P(SignKernelsTest, QuotientsAreTheFormulaToTheBit) {
  for (int64_t n = 0; n <= 50; ++n) {
    std::vector<float> x(static_cast<size_t>(n)), found(static_cast<size_t>(n + 3), kBesides), wanted = found;
    for (int64_t i = 0; i < n; ++i) {
      x[static_cast<size_t>(i)] = 0.7F * static_cast<float>(i - 20);
      wanted[static_cast<size_t>(i + 1)] = kBesides + x[static_cast<size_t>(i)] / 3;
    }
    kernel_set(GetParam()).add_quotients(x.data(), n, 3, found.data() + 1);
    EXPECT_TRUE(same_memory(found, wanted)) << n;
  }
}

TEST(SignTest, ZerosOfEitherSignArePositiveAndNanIsNot) {
  std::vector<float> x = {0.0F, -0.0F, std::numeric_limits<float>::quiet_NaN(), -1.0F};
  uint8_t bits = 0;
  active_kernels().pack_signs(x.data(), 4, 2, &bits);
  EXPECT_EQ(bits, 3);
  EXPECT_THAT(x, testing::ElementsAre(-2, -2, testing::IsNan(), 1));
}

INSTANTIATE_TEST_SUITE_P(Sets, SignKernelsTest, testing::Values(Simd::scalar, Simd::avx2, Simd::avx512),
                         [](const auto& info) { return name(info.param); });

} // namespace
} // namespace trireme::kernels
