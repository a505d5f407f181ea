// Linear layers in FP8 equal their formulas with torch._scaled_mm, forward and backward.
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/fp8/linear.h>
#include <trireme/fp8/quantize.h>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace trireme::fp8 {
namespace {

using Tensors = std::vector<at::Tensor>;

Options of(Recipe recipe) {
  return {.enabled = true, .recipe = recipe};
}

// a b^T by libtorch's own operator, of matrices quantised for it.
at::Tensor reference(const at::Tensor& a, Format a_format, const at::Tensor& b, Format b_format, Granularity of_a,
                     Granularity of_b) {
  const Quantized a8 = quantize(a, a_format, of_a, true), b8 = quantize(b, b_format, of_b, true);
  const bool rows = of_a == Granularity::row || of_b == Granularity::row;
  const auto scale = [&](const Quantized& x) {
    return rows ? x.scale.expand({x.values.size(0), 1}).contiguous() : x.scale.squeeze();
  };
  const at::Tensor scale_b = scale(b8);
  return at::_scaled_mm(a8.values.contiguous(), b8.values.contiguous().t(), scale(a8), rows ? scale_b.t() : scale_b, {},
                        {}, at::kBFloat16);
}

class LinearTest : public testing::TestWithParam<Recipe> {
 protected:
  LinearTest() { torch::manual_seed(5); }
  static at::Tensor random(at::IntArrayRef sizes, double size = 1) {
    return (torch::randn(sizes) * size).to(at::kBFloat16).requires_grad_(true);
  }
  at::Tensor x = random({3, 16, 64});
  at::Tensor weight = random({32, 64}, 0.1);
  at::Tensor bias = random({32});
};

INSTANTIATE_TEST_SUITE_P(Recipes, LinearTest,
                         testing::Values(Recipe::tensorwise, Recipe::rowwise, Recipe::rowwise_with_gw_hp),
                         [](const auto& info) { return recipe_name(info.param); });

TEST_P(LinearTest, EqualsItsFormulasToTheBit) {
  const bool one = GetParam() == Recipe::tensorwise;
  const Granularity each = one ? Granularity::tensor : Granularity::row;
  const Granularity weight_back = GetParam() == Recipe::rowwise ? Granularity::row : Granularity::tensor;
  const Format back = one ? Format::e5m2 : Format::e4m3;
  const at::Tensor y = linears(x, {weight}, {bias}, of(GetParam()))[0];
  const at::Tensor dy = torch::randn_like(y);
  y.backward(dy);

  const at::NoGradGuard no_grad;
  const at::Tensor rows = x.view({-1, 64}), dy_rows = dy.view({-1, 32});
  EXPECT_TRUE(y.view({-1, 32}).equal(reference(rows, Format::e4m3, weight, Format::e4m3, each, each) + bias));
  EXPECT_TRUE(x.grad().view({-1, 64}).equal(reference(dy_rows, back, weight.t(), Format::e4m3, each, weight_back)));
  EXPECT_TRUE(weight.grad().equal(GetParam() == Recipe::rowwise_with_gw_hp
                                      ? dy_rows.t().mm(rows)
                                      : reference(dy_rows.t(), back, rows.t(), Format::e4m3, each, each)));
  EXPECT_TRUE(bias.grad().equal(dy_rows.sum(0)));
}

TEST_P(LinearTest, IsNearTheProductOfBf16) {
  const at::Tensor y = linears(x, {weight}, {}, of(GetParam()))[0];
  const at::Tensor dy = torch::randn_like(y);
  const auto gradients = [&](const at::Tensor& result) {
    return torch::autograd::grad({result}, {x, weight}, {dy}, /*retain_graph=*/true);
  };
  const auto expect_near = [](const at::Tensor& a, const at::Tensor& b) {
    const double relative = ((a - b).to(at::kFloat).norm() / b.to(at::kFloat).norm()).item<double>();
    EXPECT_LT(relative, 0.08);
    EXPECT_GT(relative, 0);
  };
  const at::Tensor exact = at::linear(x, weight);
  expect_near(y, exact);
  const auto ours = gradients(y), theirs = gradients(exact);
  expect_near(ours[0], theirs[0]);
  if (GetParam() == Recipe::rowwise_with_gw_hp) {
    EXPECT_TRUE(ours[1].equal(theirs[1]));
  } else {
    expect_near(ours[1], theirs[1]);
  }
}

// Queries, keys and values: x is quantised once.
TEST_P(LinearTest, SeveralLayersEqualEachAlone) {
  const Tensors weights = {weight, random({16, 64}, 0.3), random({48, 64})};
  const Tensors biases = {bias, random({16}), random({48})};
  const Tensors together = linears(x, weights, biases, of(GetParam()));
  at::Tensor sum;
  Tensors dys;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor alone = linears(x, {weights[i]}, {biases[i]}, of(GetParam()))[0];
    EXPECT_TRUE(together[i].equal(alone));
    const at::Tensor dy = torch::randn_like(alone);
    const auto ours = torch::autograd::grad({together[i]}, {weights[i], biases[i]}, {dy}, /*retain_graph=*/true);
    const auto theirs = torch::autograd::grad({alone}, {weights[i], biases[i], x}, {dy});
    EXPECT_TRUE(ours[0].equal(theirs[0]) && ours[1].equal(theirs[1]));
    sum = sum.defined() ? sum + theirs[2] : theirs[2];
    dys.push_back(dy);
  }
  const auto dx = torch::autograd::grad(together, {x}, dys);
  EXPECT_TRUE(dx[0].equal(sum));
}

// A GPU's products need a multiple of 16 tokens; zeros fill up.
TEST_P(LinearTest, AnyNumberOfTokensGivesTheSumsOfThose) {
  const at::Tensor few = x.detach().view({-1, 64}).narrow(0, 0, 21).clone().requires_grad_(true);
  const at::Tensor y = linears(few, {weight}, {}, of(GetParam()))[0];
  const at::Tensor dy = torch::randn_like(y);
  const auto ours = torch::autograd::grad({y}, {few, weight}, {dy});
  const at::Tensor padded = at::constant_pad_nd(few.detach(), {0, 0, 0, 11}).requires_grad_(true);
  const at::Tensor padded_y = linears(padded, {weight}, {}, of(GetParam()))[0];
  const auto theirs = torch::autograd::grad({padded_y}, {padded, weight}, {at::constant_pad_nd(dy, {0, 0, 0, 11})});
  EXPECT_TRUE(y.equal(padded_y.narrow(0, 0, 21)));
  EXPECT_TRUE(ours[0].equal(theirs[0].narrow(0, 0, 21)));
  EXPECT_TRUE(at::allclose(ours[1].to(at::kFloat), theirs[1].to(at::kFloat), 1e-2, 1e-3));
  EXPECT_EQ(linears(x.narrow(0, 0, 0), {weight}, {bias}, of(GetParam()))[0].sizes(), (at::IntArrayRef{0, 16, 32}));
}

TEST_P(LinearTest, UnderAutocastWeightsStayFp32) {
  const at::Tensor x32 = x.detach().to(at::kFloat).requires_grad_(true);
  const at::Tensor weight32 = weight.detach().to(at::kFloat).requires_grad_(true);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = linears(x32, {weight32}, {}, of(GetParam()))[0];
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(y.equal(linears(x, {weight}, {}, of(GetParam()))[0]));
  y.sum().backward();
  EXPECT_EQ(x32.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(weight32.grad().scalar_type(), at::kFloat);
}

TEST_P(LinearTest, OnlyWantedGradientsAreComputed) {
  const at::Tensor y = linears(x, {weight.detach()}, {}, of(GetParam()))[0];
  EXPECT_TRUE(torch::autograd::grad({y.sum()}, {x})[0].defined());
  const at::Tensor other = linears(x.detach(), {weight}, {}, of(GetParam()))[0];
  EXPECT_TRUE(torch::autograd::grad({other.sum()}, {weight})[0].defined());
}

TEST_P(LinearTest, RefusesDoubleBackward) {
  const at::Tensor y = linears(x, {weight}, {}, of(GetParam()))[0];
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true), Error);
}

// torchao's formulas with torch._scaled_mm. Scales that are no powers of two are rounded in another order.
TEST(ReferenceTest, EqualsPython) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_fp8_reference_", ::getpid());
  fs::create_directories(folder);
  const std::string command =
      concat('"', test::python(), "\" \"", test::source_dir(), "/tests/fp8/reference_fp8.py\" ", folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto given = checkpoint::Safetensors::open(folder / "fp8.safetensors");
  for (const Recipe recipe : {Recipe::tensorwise, Recipe::rowwise, Recipe::rowwise_with_gw_hp}) {
    for (const bool power_of_2 : {true, false}) {
      Options options = of(recipe);
      options.round_scales_to_power_of_2 = power_of_2;
      const at::Tensor x = given.tensor("x").clone().requires_grad_(true);
      const at::Tensor weight = given.tensor("weight").clone().requires_grad_(true);
      const at::Tensor y = linears(x, {weight}, {}, options)[0];
      y.backward(given.tensor("dy").clone());
      for (const auto& [name, ours] :
           {std::pair("y", y), std::pair("dx", x.grad()), std::pair("dweight", weight.grad())}) {
        const at::Tensor theirs = given.tensor(concat(recipe_name(recipe), power_of_2 ? "/" : "/exact/", name));
        if (power_of_2) {
          EXPECT_TRUE(ours.equal(theirs)) << recipe_name(recipe) << ' ' << name;
        } else {
          EXPECT_TRUE(at::allclose(ours.to(at::kFloat), theirs.to(at::kFloat), 0x1p-7, 1e-6))
              << recipe_name(recipe) << ' ' << name;
        }
      }
    }
  }
  fs::remove_all(folder);
}

TEST(FitsTest, BothSizesAreMultiplesOf16) {
  EXPECT_TRUE(fits(at::empty({16, 48})));
  EXPECT_FALSE(fits(at::empty({16, 40})));
  EXPECT_FALSE(fits(at::empty({8, 16})));
  EXPECT_FALSE(fits(at::empty({0, 16})));
  EXPECT_FALSE(fits(at::empty({16})));
}

} // namespace
} // namespace trireme::fp8
