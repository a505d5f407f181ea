#include <trireme/precision/cast.h>

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

namespace trireme::precision {
namespace {

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    first = register_module("first", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    batch = register_module("batch", torch::nn::BatchNorm1d(4));
    last = register_module("last", torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false)));
    copy = register_parameter("copy", first->weight); // tied: the same parameter under a second name
    half_of_bias = register_buffer("half_of_bias", first->bias.detach().narrow(0, 0, 2));
    same_half = register_buffer("same_half", first->bias.detach().narrow(0, 0, 2));
    counts = register_buffer("counts", torch::arange(3));
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(batch->forward(norm->forward(first->forward(x)))); }
  torch::nn::Linear first{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::BatchNorm1d batch{nullptr};
  torch::nn::Linear last{nullptr};
  at::Tensor copy, half_of_bias, same_half, counts;
};

TEST(CastTest, ConvertsInPlaceAndKeepsTies) {
  MixedImpl model; // on the stack: no shared_ptr needed
  const at::Tensor weight = model.first->weight;
  const at::Tensor before = weight.detach().clone();
  model.forward(torch::randn({5, 3})).sum().backward();
  cast_module(model, Type::bf16);
  EXPECT_TRUE(model.first->weight.is_same(weight)) << "an optimizer holds it";
  EXPECT_TRUE(model.copy.is_same(weight));
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(weight.is_leaf());
  EXPECT_FALSE(weight.grad().defined()) << "a gradient of the old type would be added to";
  EXPECT_TRUE(weight.detach().equal(before.to(at::kBFloat16)));
  EXPECT_EQ(model.norm->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model.batch->running_mean.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model.counts.scalar_type(), at::kLong);
  EXPECT_EQ(model.half_of_bias.data_ptr(), model.same_half.data_ptr()) << "what shared memory still does";
  model.forward(torch::randn({5, 3}).to(at::kBFloat16)).sum().backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kBFloat16);
}

TEST(CastTest, NormsMayStayInFp32) {
  MixedImpl model;
  CastOptions options;
  options.keep_norms = true;
  cast_module(model, Type::bf16, options);
  EXPECT_EQ(model.first->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model.norm->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(model.batch->running_var.scalar_type(), at::kFloat);
  EXPECT_EQ(model.last->weight.scalar_type(), at::kBFloat16);
  const at::Tensor out = model.forward(torch::randn({5, 3}).to(at::kBFloat16));
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  out.sum().backward();
  EXPECT_EQ(model.norm->weight.grad().scalar_type(), at::kFloat);
}

TEST(CastTest, BuffersMayStay) {
  MixedImpl model;
  CastOptions options;
  options.buffers = false;
  cast_module(model, Type::fp16, options);
  EXPECT_EQ(model.batch->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(model.batch->running_var.scalar_type(), at::kFloat);
}

TEST(CastTest, ThereAndBackKeepsTheRoundedValues) {
  MixedImpl model;
  const at::Tensor before = model.last->weight.detach().clone();
  cast_module(model, Type::bf16);
  cast_module(model, Type::fp32);
  EXPECT_TRUE(model.last->weight.detach().equal(before.to(at::kBFloat16).to(at::kFloat)));
}

TEST(CastTest, InputsAreCastWhereTheyAreFloating) {
  const std::vector<at::Tensor> inputs = {torch::ones({2}), torch::ones({2}, torch::kInt64), at::Tensor(),
                                          torch::ones({1}, torch::kHalf)};
  const auto cast = cast_floating(inputs, Type::fp16);
  EXPECT_EQ(cast[0].scalar_type(), at::kHalf);
  EXPECT_EQ(cast[1].scalar_type(), at::kLong);
  EXPECT_FALSE(cast[2].defined());
  EXPECT_EQ(cast[3].scalar_type(), at::kHalf);
}

} // namespace
} // namespace trireme::precision
