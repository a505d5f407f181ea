// Casts to FP8 equal the definition of the formats and ATen's casts; scales are those of torchao.
#include <trireme/fp8/quantize.h>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trireme::fp8 {
namespace {

// All 2^16 values of bf16, as fp32.
at::Tensor all_bf16() {
  return at::arange(0, 1 << 16, at::kInt).to(at::kShort).view(at::kBFloat16).to(at::kFloat);
}

// The finite numbers >= 0 of a format, from its bits, in order.
std::vector<double> numbers_of(Format format) {
  const bool e4m3 = format == Format::e4m3;
  const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  std::vector<double> numbers;
  for (int bits = 0; bits < (e4m3 ? 127 : 124); ++bits) { // then NaN; or infinity and NaN
    const int exponent = bits >> mantissa;
    const double fraction = std::ldexp(bits & ((1 << mantissa) - 1), -mantissa);
    numbers.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
  }
  return numbers;
}

// The nearest number, ties to the even one (an even index), saturated.
double nearest(const std::vector<double>& numbers, double x) {
  const double magnitude = std::abs(x);
  size_t below = 0;
  while (below + 1 < numbers.size() && numbers[below + 1] <= magnitude) {
    ++below;
  }
  size_t best = below;
  if (below + 1 < numbers.size()) {
    const double down = magnitude - numbers[below], up = numbers[below + 1] - magnitude;
    best = up < down || (up == down && below % 2 == 1) ? below + 1 : below;
  }
  return std::copysign(numbers[best], x);
}

class FormatTest : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, FormatTest, testing::Values(Format::e4m3, Format::e5m2));

TEST_P(FormatTest, AllBf16ValuesAreRoundedToNearestEvenAndSaturate) {
  const at::Tensor x = all_bf16();
  const std::vector<double> numbers = numbers_of(GetParam());
  EXPECT_EQ(numbers.back(), largest(GetParam()));
  const at::Tensor y = saturating_cast(x, GetParam()).to(at::kFloat);
  const float* const from = x.const_data_ptr<float>();
  const float* const to = y.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (std::isnan(from[i])) {
      ASSERT_TRUE(std::isnan(to[i]));
    } else {
      ASSERT_EQ(to[i], nearest(numbers, from[i])) << from[i];
    }
  }
}

TEST_P(FormatTest, EqualsAtensCastWithinTheRange) {
  const at::Tensor all = all_bf16();
  const at::Tensor x = all.index({all.abs().le(largest(GetParam()))});
  EXPECT_GT(x.numel(), 30000);
  EXPECT_TRUE(saturating_cast(x, GetParam()).to(at::kFloat).equal(x.to(scalar_type(GetParam())).to(at::kFloat)));
}

TEST_P(FormatTest, TheLargestMagnitudeIsScaledToTheLargestNumber) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({8, 32}) * at::pow(10, at::arange(-4, 4)).unsqueeze(1);
  for (const Granularity granularity : {Granularity::tensor, Granularity::row}) {
    const bool rows = granularity == Granularity::row;
    const at::Tensor amax = rows ? x.abs().amax({1}, true) : x.abs().max().view({1, 1});
    const Quantized exact = quantize(x, GetParam(), granularity, /*power_of_2=*/false);
    EXPECT_EQ(exact.scale.sizes(), (at::IntArrayRef{rows ? 8 : 1, 1}));
    EXPECT_TRUE(at::allclose(exact.scale, amax / largest(GetParam()), 1e-6));
    const Quantized rounded = quantize(x, GetParam(), granularity, /*power_of_2=*/true);
    EXPECT_TRUE(rounded.scale.log2().equal(rounded.scale.log2().round()));
    EXPECT_TRUE(rounded.scale.ge(exact.scale * (1 - 1e-6)).all().item<bool>());
    EXPECT_TRUE(rounded.scale.lt(exact.scale * 2.001).all().item<bool>());
    const double half_step = GetParam() == Format::e4m3 ? 1 / 16.0 : 1 / 8.0; // of a number, relative
    for (const Quantized& q : {exact, rounded}) {
      const at::Tensor error = (q.values.to(at::kFloat) * q.scale - x).abs();
      EXPECT_TRUE(error.le(x.abs() * half_step * 1.0001 + q.scale * 0.002).all().item<bool>());
    }
  }
}

TEST_P(FormatTest, InfinitiesAndNanReachTheResult) {
  for (const double wrong : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const bool power_of_2 : {false, true}) {
      at::Tensor x = at::ones({2, 16});
      x[1][3] = wrong;
      const auto back = [&](Granularity granularity) {
        const Quantized q = quantize(x, GetParam(), granularity, power_of_2);
        return q.values.to(at::kFloat) * q.scale;
      };
      EXPECT_TRUE(back(Granularity::tensor).isnan().any().item<bool>());
      EXPECT_TRUE(back(Granularity::row)[0].equal(x[0]));
      EXPECT_TRUE(back(Granularity::row)[1].isnan().any().item<bool>());
    }
  }
  const Quantized zeros = quantize(at::zeros({2, 16}), GetParam(), Granularity::row, true);
  EXPECT_TRUE((zeros.values.to(at::kFloat) * zeros.scale).equal(at::zeros({2, 16})));
}

} // namespace
} // namespace trireme::fp8
