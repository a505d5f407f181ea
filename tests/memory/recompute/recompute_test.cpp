#include <trireme/memory/recompute/recompute.h>

#include <trireme/base/error.h>

#include <tests/support/peer_error.h>

#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::recompute {
namespace {

using test::error_of;
using testing::HasSubstr;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(8, 32));
    down = register_module("down", torch::nn::Linear(32, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::dropout(torch::gelu(up(x)), 0.3, is_training())); }
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};
TORCH_MODULE(Block);

TEST(RecomputeTest, NamedBuffersChangeOnce) {
  const at::Tensor counter = torch::zeros({2});
  Options options;
  options.buffers = {counter};
  const at::Tensor x = torch::ones({3}, torch::requires_grad());
  run(
      [&](const Tensors& in) {
        counter.add_(1);
        return Tensors{in[0] * 2};
      },
      {x}, options)[0]
      .sum()
      .backward();
  EXPECT_TRUE(counter.equal(torch::ones({2})));
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 2.0)));
}

struct Result {
  Tensors values; // outputs, input gradients, parameter gradients, next random number
};

// Runs three blocks with and without recomputation from the same seeds.
template <typename Step>
Result train(Step step, bool input_requires_grad = true) {
  torch::manual_seed(1);
  std::vector<Block> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.emplace_back();
  }
  at::Tensor x = torch::randn({5, 8});
  x.set_requires_grad(input_requires_grad);
  at::Tensor h = x;
  for (Block& block : blocks) {
    h = step(block, h);
  }
  h.square().sum().backward();
  Result result{{h.detach(), torch::rand({3})}};
  if (input_requires_grad) {
    result.values.push_back(x.grad());
  }
  for (Block& block : blocks) {
    for (const at::Tensor& parameter : block->parameters()) {
      result.values.push_back(parameter.grad());
    }
  }
  return result;
}

void expect_same_bits(const Result& a, const Result& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    ASSERT_TRUE(a.values[i].defined() && b.values[i].defined()) << "value " << i;
    EXPECT_TRUE(a.values[i].equal(b.values[i])) << "value " << i;
  }
}

at::Tensor plainly(Block& block, const at::Tensor& x) {
  return block->forward(x);
}

at::Tensor recomputed(Block& block, const at::Tensor& x) {
  return call([block](const at::Tensor& y) mutable { return block->forward(y); }, x);
}

TEST(RecomputeTest, GradientsAndDropoutMasksKeepTheirBits) {
  expect_same_bits(train(recomputed), train(plainly));
}

TEST(RecomputeTest, ParametersLearnAlthoughNoInputRequiresAGradient) {
  expect_same_bits(train(recomputed, false), train(plainly, false));
}

TEST(RecomputeTest, InsideAnotherOne) {
  const auto nested = [](Block& block, const at::Tensor& x) {
    return call([block](const at::Tensor& y) mutable { return recomputed(block, y * 1.5) * 0.5; }, x);
  };
  const auto plain = [](Block& block, const at::Tensor& x) { return block->forward(x * 1.5) * 0.5; };
  expect_same_bits(train(nested), train(plain));
}

TEST(RecomputeTest, WithoutPreservedRandomStateMasksDiffer) {
  const auto careless = [](Block& block, const at::Tensor& x) {
    return run([block](const Tensors& y) mutable { return Tensors{block->forward(y[0])}; }, {x},
               {.preserve_rng_state = false})
        .at(0);
  };
  EXPECT_FALSE(train(careless).values[2].equal(train(plainly).values[2])) << "the input's gradient";
}

TEST(RecomputeTest, SeveralInputsAndOutputsOfEveryKind) {
  const auto f = [](const Tensors& in) {
    const at::Tensor sum = in[0] * in[1];
    return Tensors{sum.masked_fill(in[2], 0), in[1], sum.argmax(-1), at::Tensor(), in[3] * 2, sum.t()};
  };
  const auto step = [&](bool recompute) {
    torch::manual_seed(3);
    const at::Tensor a = torch::randn({4, 6}).requires_grad_();
    const at::Tensor b = torch::randn({4, 6}).requires_grad_();
    const at::Tensor mask = torch::rand({4, 6}) < 0.5;
    const at::Tensor table = torch::rand({4});
    const Tensors in = {a, b, mask, table, at::Tensor()};
    const Tensors out = recompute ? run(f, in) : f(in);
    EXPECT_EQ(out.size(), 6u);
    EXPECT_TRUE(out[0].requires_grad());
    EXPECT_TRUE(out[1].is_same(b)) << "what is passed on comes back as itself";
    EXPECT_FALSE(out[2].requires_grad());
    EXPECT_FALSE(out[3].defined());
    EXPECT_FALSE(out[4].requires_grad()) << "made of a table without gradient";
    EXPECT_TRUE(out[5].requires_grad());
    (out[0].sum() * 2 + (out[1] * out[1]).sum() + (out[5] * torch::arange(24).view({6, 4})).sum()).backward();
    return Result{{out[0].detach(), out[2], out[4], a.grad(), b.grad()}};
  };
  expect_same_bits(step(true), step(false));
}

TEST(RecomputeTest, OnlySomeOutputsAreUsed) {
  const at::Tensor x = torch::ones({3}).requires_grad_();
  const auto [twice, thrice] = call([](const at::Tensor& y) { return std::make_tuple(y * 2, y * 3); }, x);
  twice.sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 2.0)));
  EXPECT_TRUE(thrice.requires_grad());
}

TEST(RecomputeTest, TheSameTensorTwice) {
  const at::Tensor x = torch::ones({3}).requires_grad_();
  const Tensors y = run(
      [](const Tensors& in) {
        const at::Tensor z = in[0] * 5;
        return Tensors{z, z};
      },
      {x});
  (y[0] + y[1]).sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 10.0)));
}

TEST(RecomputeTest, NothingToTrainMakesNoGraph) {
  Block block;
  for (at::Tensor& parameter : block->parameters()) {
    parameter.set_requires_grad(false);
  }
  EXPECT_FALSE(recomputed(block, torch::ones({2, 8})).requires_grad());
}

TEST(RecomputeTest, FrozenParametersGetNoGradient) {
  Block block;
  block->up->weight.set_requires_grad(false);
  recomputed(block, torch::ones({2, 8})).sum().backward();
  EXPECT_FALSE(block->up->weight.grad().defined());
  EXPECT_TRUE(block->up->bias.grad().defined());
}

TEST(RecomputeTest, AParameterMayBeReturned) {
  const at::Tensor weight = torch::ones({2}).requires_grad_();
  const at::Tensor out = run([&](const Tensors&) { return Tensors{weight}; }, {torch::ones({1})}).at(0);
  EXPECT_TRUE(weight.requires_grad());
  (out * 3).sum().backward();
  EXPECT_TRUE(weight.grad().equal(torch::full({2}, 3.0)));
}

TEST(RecomputeTest, WithoutGradFIsSimplyCalled) {
  int calls = 0;
  const torch::NoGradGuard no_grad;
  const at::Tensor y = call(
      [&](const at::Tensor& x) {
        ++calls;
        return x * 2;
      },
      torch::ones({2}).requires_grad_());
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(calls, 1);
}

// The point of it all: nothing inside f is alive between forward and backward.
TEST(RecomputeTest, ActivationsAreNotKept) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> activations;
  const auto f = [&](const at::Tensor& x) {
    const at::Tensor a = torch::exp(x); // exp keeps its result for backward
    const at::Tensor b = torch::exp(a);
    activations.push_back(a.storage().getWeakStorageImpl());
    activations.push_back(b.storage().getWeakStorageImpl());
    return b * b;
  };
  const auto alive = [&] {
    return std::count_if(activations.begin(), activations.end(), [](const auto& weak) { return !weak.expired(); });
  };
  const at::Tensor x = torch::zeros({4}).requires_grad_();
  {
    const at::Tensor y = f(x);
    EXPECT_EQ(alive(), 2) << "the test sees what is kept";
  }
  activations.clear();
  const at::Tensor y = call(f, x);
  EXPECT_EQ(alive(), 0);
  EXPECT_EQ(activations.size(), 2u);
  y.sum().backward();
  EXPECT_EQ(activations.size(), 4u) << "f ran once more";
  EXPECT_EQ(alive(), 0);
}

TEST(RecomputeTest, AutocastIsTheForwards) {
  const at::Tensor weight = torch::randn({4, 4}).requires_grad_();
  std::vector<at::ScalarType> types;
  const auto f = [&](const at::Tensor& x) {
    const at::Tensor y = torch::mm(x, weight);
    types.push_back(y.scalar_type());
    return y;
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = call(f, torch::randn({4, 4}));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.to(torch::kFloat).sum().backward();
  EXPECT_THAT(types, testing::ElementsAre(at::kBFloat16, at::kBFloat16));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
}

TEST(RecomputeTest, CallReturnsWhatTheFunctionReturns) {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  EXPECT_EQ(call([](const at::Tensor& a, const at::Tensor& b) { return Tensors{a + b, a, b}; }, x, x).size(), 3u);
  const std::pair<at::Tensor, at::Tensor> pair = call([](at::Tensor a) { return std::make_pair(a * 2, a * 3); }, x);
  EXPECT_EQ(pair.second[0].item<float>(), 3);
}

TEST(RecomputeErrorTest, InputsChangedInPlace) {
  const at::Tensor x = torch::ones({3}).requires_grad_() * 1;
  EXPECT_THAT(error_of([&] {
                const at::Tensor y = torch::ones({3});
                call([](at::Tensor a, at::Tensor b) { return a * b.add_(1); }, x, y);
              }),
              HasSubstr("a recomputed function changed its input 1 in place"));
  const at::Tensor input = x * 1;
  const at::Tensor y = call([](at::Tensor a) { return a * a; }, input);
  input.add_(1);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }), HasSubstr("modified in place between forward and backward"));
}

TEST(RecomputeErrorTest, AnotherResultTheSecondTime) {
  const at::Tensor x = torch::ones({3}).requires_grad_();
  int calls = 0;
  const at::Tensor y = call([&](at::Tensor a) { return ++calls == 1 ? a * 2 : torch::cat({a, a}); }, x);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }), testing::AllOf(HasSubstr("[3] Float"), HasSubstr("[6] Float")));
}

TEST(RecomputeErrorTest, SecondDerivatives) {
  const at::Tensor x = torch::ones({3}).requires_grad_();
  const at::Tensor y = call([](at::Tensor a) { return a * a * a; }, x);
  EXPECT_THAT(error_of([&] { torch::autograd::grad({y.sum()}, {x}, {}, true, true); }), HasSubstr("create_graph"));
}

TEST(RecomputeErrorTest, BackwardTwice) {
  const at::Tensor x = torch::ones({3}).requires_grad_();
  const at::Tensor y = call([](at::Tensor a) { return a * a; }, x).sum();
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 4.0)));
  EXPECT_ANY_THROW(y.backward());
}

} // namespace
} // namespace trireme::recompute
