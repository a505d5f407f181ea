// Products of bf16 and fp16 matrices are those of fp32, rounded once; everything else is as libtorch has it.
#include <trireme/precision/half_products.h>

#include <ATen/ops/addmm_cpu_dispatch.h>
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>

namespace trireme::precision {
namespace {

class HalfProductsTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  HalfProductsTest() {
    multiply_halves_in_fp32();
    torch::manual_seed(1);
  }
  at::Tensor random(at::IntArrayRef sizes) const { return torch::randn(sizes).to(GetParam()); }
  at::Tensor rounded(const at::Tensor& exact) const { return exact.to(GetParam()); }
  void expect_close(const at::Tensor& y, const at::Tensor& exact) const {
    ASSERT_EQ(y.scalar_type(), GetParam());
    EXPECT_TRUE(at::allclose(y.to(at::kFloat), exact, GetParam() == at::kHalf ? 2e-3 : 1e-2, 2e-2));
  }
  // One rounding. Where libtorch's own kernels run, they may add in another order, of which one unit is left.
  void expect_rounded_once(const at::Tensor& y, const at::Tensor& exact) const {
    ASSERT_EQ(y.scalar_type(), GetParam());
    if (has_fast_products(GetParam())) {
      expect_close(y, exact);
    } else {
      EXPECT_TRUE(y.equal(rounded(exact)));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Types, HalfProductsTest, testing::Values(at::kBFloat16, at::kHalf));

TEST_P(HalfProductsTest, EqualFp32RoundedOnce) {
  const at::Tensor a = random({5, 7}), b = random({9, 7}), bias = random({9}), out = random({5, 9});
  const at::Tensor fa = a.to(at::kFloat), fb = b.to(at::kFloat), fbias = bias.to(at::kFloat), fout = out.to(at::kFloat);
  expect_rounded_once(at::mm(a, b.t()), fa.mm(fb.t()));
  expect_rounded_once(at::linear(a, b, bias), at::addmm(fbias, fa, fb.t()));
  expect_rounded_once(at::addmm(out, a, b.t(), 0.5, 2), at::addmm(fout, fa, fb.t(), 0.5, 2));
  expect_rounded_once(out.clone().addmm_(a, b.t()), at::addmm(fout, fa, fb.t()));
  at::Tensor into = at::empty({0}, a.options());
  expect_rounded_once(at::mm_out(into, a, b.t()), fa.mm(fb.t()));
  expect_rounded_once(at::addmm_out(into, bias, a, b.t()), at::addmm(fbias, fa, fb.t()));

  at::Tensor across = at::empty({9, 5}, a.options()).t(); // with strides
  expect_rounded_once(at::mm_out(across, a, b.t()), fa.mm(fb.t()));
  const at::Tensor none = at::full({5, 9}, std::nan(""), a.options());
  expect_rounded_once(at::addmm(none, a, b.t(), 0), fa.mm(fb.t()));
  expect_rounded_once(at::addmm(random({5, 1}).fill_(2), a, b.t()), fa.mm(fb.t()).add(2));

  const at::Tensor c = random({3, 4, 6}), d = random({3, 6, 5}), e = random({3, 4, 5});
  const at::Tensor fc = c.to(at::kFloat), fd = d.to(at::kFloat), fe = e.to(at::kFloat);
  expect_rounded_once(at::matmul(c, d), fc.bmm(fd));
  into = at::empty({0}, a.options());
  expect_rounded_once(at::bmm_out(into, c, d), fc.bmm(fd));
  expect_rounded_once(at::baddbmm(e, c, d, 2, 0.25), at::baddbmm(fe, fc, fd, 2, 0.25));
  expect_rounded_once(at::baddbmm_out(into, e, c, d), at::baddbmm(fe, fc, fd));
  expect_rounded_once(e.clone().baddbmm_(c, d), at::baddbmm(fe, fc, fd));
  EXPECT_EQ(at::mm(random({0, 3}), random({3, 2})).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_TRUE(at::mm(random({5, 0}), random({0, 6})).equal(torch::zeros({5, 6}, a.options())));
  EXPECT_TRUE(at::addmm(bias, random({5, 0}), random({0, 9})).equal(bias.expand({5, 9})));
}

// Several blocks of rows, of columns, and of what is summed, with their ends.
TEST_P(HalfProductsTest, BlocksOfALargeProductAreTheProduct) {
  const at::Tensor a = random({700, 9000}), b = random({9000, 600}), addend = random({700, 1});
  const at::Tensor exact = a.to(at::kFloat).mm(b.to(at::kFloat));
  expect_close(at::mm(a, b), exact);
  expect_close(at::mm(b.t(), a.t()), exact.t());
  expect_close(at::addmm(addend, a, b, 3, 0.5), at::add(3 * addend.to(at::kFloat), exact, 0.5));
}

TEST_P(HalfProductsTest, BlocksOfABatchAreTheProducts) {
  for (const int64_t rows : {100, 5000}) { // several matrices are a block, or one has several
    const at::Tensor a = random({9, rows, 400}), b = random({9, 400, 30}), addend = random({9, rows, 30});
    const at::Tensor exact = a.to(at::kFloat).bmm(b.to(at::kFloat));
    expect_close(at::bmm(a, b), exact);
    expect_close(at::baddbmm(addend, a, b, 2, 0.25), at::add(2 * addend.to(at::kFloat), exact, 0.25));
  }
}

TEST_P(HalfProductsTest, GradientsAreOfTheSameType) {
  torch::nn::Linear layer(6, 4);
  layer->to(GetParam());
  const at::Tensor x = random({2, 3, 6}).requires_grad_();
  layer->forward(x).sum().backward();
  expect_rounded_once(layer->weight.grad(), torch::ones({4, 6}, at::kFloat).mul(x.detach().to(at::kFloat).sum({0, 1})));
  EXPECT_EQ(x.grad().scalar_type(), GetParam());
  EXPECT_EQ(layer->bias.grad().scalar_type(), GetParam());
}

TEST_P(HalfProductsTest, WhatDoesNotFitIsRefusedAsBefore) {
  EXPECT_THROW(at::mm(random({2, 3}), random({2, 3})), c10::Error);
  EXPECT_THROW(at::mm(random({2, 3}), torch::randn({3, 2})), c10::Error);
  EXPECT_THROW(at::bmm(random({2, 2, 3}), random({3, 3, 2})), c10::Error);
  const at::Tensor a = random({5, 6}), b = random({6, 7});
  for (const at::IntArrayRef sizes : {at::IntArrayRef({7}), at::IntArrayRef({1, 7}), at::IntArrayRef({8, 9})}) {
    EXPECT_ANY_THROW(random(sizes).addmm_(a, b)) << sizes;
  }
  EXPECT_ANY_THROW(random({7}).baddbmm_(random({2, 5, 6}), random({2, 6, 7})));
  for (const at::ScalarType other : {at::kFloat, at::kDouble}) {
    at::Tensor out = at::zeros({5, 7}, other);
    EXPECT_ANY_THROW(at::mm_out(out, a, b)) << other;
    EXPECT_ANY_THROW(at::addmm(out, a, b)) << other;
    EXPECT_ANY_THROW(out.addmm_(a, b)) << other;
    EXPECT_ANY_THROW(at::linear(a, b.t(), at::zeros({7}, other))) << other;
  }
}

TEST(HalfProductsOfOtherTypes, AreThoseOfLibtorch) {
  multiply_halves_in_fp32();
  const at::Tensor a = torch::randn({5, 7}), b = torch::randn({7, 9}), bias = torch::randn({9});
  EXPECT_TRUE(at::addmm(bias, a, b).equal(at::cpu::addmm(bias, a, b)));
  EXPECT_TRUE(at::mm(torch::ones({2, 3}, at::kLong), torch::ones({3, 2}, at::kLong)).equal(torch::full({2, 2}, 3)));
  EXPECT_EQ(at::mm(a.to(at::kDouble), b.to(at::kDouble)).scalar_type(), at::kDouble);
}

} // namespace
} // namespace trireme::precision
