// Emulated products equal torch._scaled_mm's on the CPU, and those of doubles.
#include <trireme/fp8/products.h>

#include <gtest/gtest.h>
#include <torch/utils.h>

namespace trireme::fp8 {
namespace {

struct Case {
  Format a, b;
  Granularity granularity;
};

class ProductsTest : public testing::TestWithParam<Case> {
 protected:
  ProductsTest() { torch::manual_seed(3); }
  const at::Tensor a = torch::randn({48, 96}) * 3;
  const at::Tensor b = torch::randn({32, 96}) * 0.02;
  Quantized quantized(const at::Tensor& x, Format format, bool power_of_2) const {
    return quantize(x, format, GetParam().granularity, power_of_2);
  }
};

INSTANTIATE_TEST_SUITE_P(Cases, ProductsTest,
                         testing::Values(Case{Format::e4m3, Format::e4m3, Granularity::tensor},
                                         Case{Format::e5m2, Format::e4m3, Granularity::tensor},
                                         Case{Format::e4m3, Format::e4m3, Granularity::row}));

at::Tensor scaled_mm(const Quantized& a, const Quantized& b) {
  const bool rows = a.scale.numel() > 1;
  return at::_scaled_mm(a.values, b.values.t(), rows ? a.scale : a.scale.squeeze(),
                        rows ? b.scale.t().contiguous() : b.scale.squeeze(), {}, {}, at::kBFloat16);
}

// libtorch's CPU scales the factors before it multiplies, which is the same for powers of two.
TEST_P(ProductsTest, EqualsScaledMmToTheBit) {
  const Quantized a8 = quantized(a, GetParam().a, true), b8 = quantized(b, GetParam().b, true);
  const at::Tensor y = products(at::kCPU).multiply(a8, b8, Sums::exact);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(y.equal(scaled_mm(a8, b8)));
  EXPECT_TRUE(products(at::kCPU).emulated);
}

TEST_P(ProductsTest, OtherScalesRoundOnceMore) {
  const Quantized a8 = quantized(a, GetParam().a, false), b8 = quantized(b, GetParam().b, false);
  const at::Tensor y = products(at::kCPU).multiply(a8, b8, Sums::exact), theirs = scaled_mm(a8, b8);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), theirs.to(at::kFloat), 0x1p-7, 1e-6)); // a unit of bf16
  EXPECT_GT(y.eq(theirs).to(at::kFloat).mean().item<double>(), 0.99);
}

TEST_P(ProductsTest, EqualsDoublesRoundedOnce) {
  const Quantized a8 = quantized(a, GetParam().a, true), b8 = quantized(b, GetParam().b, true);
  const at::Tensor exact = (a8.values.to(at::kDouble) * a8.scale).mm((b8.values.to(at::kDouble) * b8.scale).t());
  const at::Tensor magnitude =
      (a8.values.to(at::kDouble) * a8.scale).abs().mm((b8.values.to(at::kDouble) * b8.scale).abs().t());
  const at::Tensor y = products(at::kCPU).multiply(a8, b8, Sums::exact).to(at::kDouble);
  EXPECT_TRUE((y - exact).abs().le(exact.abs() * 0x1p-8 + magnitude * 96 * 0x1p-24).all().item<bool>());
  // Against the unquantised product: half a step of each factor.
  const double step = (GetParam().a == Format::e4m3 ? 0x1p-4 : 0x1p-3) + 0x1p-4;
  const at::Tensor whole = a.to(at::kDouble).mm(b.to(at::kDouble).t());
  const at::Tensor bound = a.abs().to(at::kDouble).mm(b.abs().to(at::kDouble).t()) * (step * 1.1 + 0x1p-8);
  EXPECT_TRUE((y - whole).abs().le(bound).all().item<bool>());
}

TEST_P(ProductsTest, TransposedFactorsAreViews) {
  const Quantized b8 = quantize(b.t(), GetParam().b, Granularity::tensor, true);
  const Quantized a8 = quantized(a, GetParam().a, true);
  EXPECT_TRUE(products(at::kCPU)
                  .multiply(a8, b8.transposed(), Sums::exact)
                  .equal(products(at::kCPU).multiply(a8, {b8.values.t().contiguous(), b8.scale}, Sums::exact)));
}

} // namespace
} // namespace trireme::fp8
