// Dropout without a mask in memory: its distribution, gradients, and what repeats the mask.
#include <trireme/fused/dropout.h>

#include <trireme/base/error.h>
#include <trireme/memory/recompute/recompute.h>

#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cmath>

namespace trireme::fused {
namespace {

/// 1 where dropout() keeps an element.
at::Tensor kept_of(int64_t count, double p, uint64_t seed) {
  torch::manual_seed(seed);
  return dropout(torch::ones({count}), p).ne(0);
}

void expect_share(const at::Tensor& which, double expected, const std::string& what) {
  const auto n = static_cast<double>(which.numel());
  const double share = which.sum().item<double>() / n;
  EXPECT_NEAR(share, expected, 5 * std::sqrt(expected * (1 - expected) / n)) << what;
}

TEST(DropoutTest, ElementsAreDroppedIndependently) {
  constexpr int64_t kCount = 1 << 20;
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor kept = kept_of(kCount, p, 7);
    expect_share(kept, 1 - p, "all");
    for (const int64_t word : {0, 1, 2, 3}) {
      expect_share(kept.slice(0, word, kCount, 4), 1 - p, concat("word ", word));
    }
    for (const int64_t distance : {1, 2, 3, 4, 16, 64, 768, 1024}) {
      expect_share(kept.slice(0, 0, kCount - distance).logical_and(kept.slice(0, distance)), (1 - p) * (1 - p),
                   concat("neighbours at ", distance));
    }
    expect_share(kept.logical_and(kept_of(kCount, p, 8)), (1 - p) * (1 - p), "another seed");
    torch::manual_seed(7);
    const at::Tensor first = dropout(torch::ones({kCount}), p).ne(0), second = dropout(torch::ones({kCount}), p).ne(0);
    EXPECT_TRUE(first.equal(kept));
    expect_share(first.logical_and(second), (1 - p) * (1 - p), "the next call");
  }
}

TEST(DropoutTest, TheGradientIsTheFactorOfForward) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(testing::Message() << type);
    const at::Tensor x = torch::randn({3, 37, 21}).to(type).requires_grad_();
    const at::Tensor residual = torch::randn({3, 37, 21}).to(type).requires_grad_();
    const at::Tensor dy = torch::randn({3, 37, 21}).to(type);
    const double p = 0.25;
    const at::Tensor factor = kept_of(x.numel(), p, 3).view(x.sizes()).to(at::kFloat) / static_cast<float>(1 - p);
    torch::manual_seed(3);
    const at::Tensor y = dropout(x, p);
    EXPECT_TRUE(y.equal((x.to(at::kFloat) * factor).to(type)));
    const at::Tensor dx = torch::autograd::grad({y}, {x}, {dy})[0];
    EXPECT_TRUE(dx.equal((dy.to(at::kFloat) * factor).to(type)));
    torch::manual_seed(3);
    const at::Tensor sum = add_dropout(x, residual, p);
    EXPECT_TRUE(
        sum.equal((residual.to(at::kDouble) + x.to(at::kDouble) * factor.to(at::kDouble)).to(at::kFloat).to(type)));
    const auto both = torch::autograd::grad({sum}, {x, residual}, {dy});
    EXPECT_TRUE(both[0].equal(dx));
    EXPECT_TRUE(both[1].equal(dy));
  }
}

TEST(DropoutTest, NothingAndEverything) {
  const at::Tensor x = torch::randn({100}).requires_grad_();
  torch::manual_seed(1);
  const at::Tensor state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_TRUE(add_dropout(x, x, 0).equal(x + x));
  EXPECT_TRUE(at::globalContext().defaultGenerator(at::kCPU).get_state().equal(state)); // nothing was drawn
  const at::Tensor none = dropout(x, 1);
  EXPECT_TRUE(none.eq(0).all().item<bool>());
  EXPECT_TRUE(torch::autograd::grad({none.sum()}, {x})[0].eq(0).all().item<bool>());
  EXPECT_EQ(dropout(torch::ones({0, 4}), 0.5).numel(), 0);
  for (const double p : {-0.1, 1.5, std::nan("")}) {
    EXPECT_THROW(dropout(x, p), InputError) << p;
    EXPECT_THROW(add_dropout(x, x, p), InputError) << p;
  }
  EXPECT_THROW(add_dropout(x, torch::ones({99}), 0.5), InputError);
}

TEST(DropoutTest, ThreadsAndStridesDoNotChangeABit) {
  const at::Tensor x = torch::randn({301, 700});
  const auto once = [&](const at::Tensor& of) {
    torch::manual_seed(2);
    return dropout(of, 0.2);
  };
  at::set_num_threads(1);
  const at::Tensor alone = once(x);
  at::set_num_threads(5);
  EXPECT_TRUE(once(x).equal(alone));
  EXPECT_TRUE(once(x.t().contiguous().t()).equal(alone));
}

TEST(DropoutTest, RecomputationDrawsTheSameMask) {
  const at::Tensor x = torch::randn({64, 48}).requires_grad_();
  const auto layer = [](const at::Tensor& in) { return add_dropout(dropout(in * 2, 0.4), in, 0.3).square(); };
  const auto trained = [&](bool again) {
    torch::manual_seed(11);
    const at::Tensor y = again ? recompute::call(layer, x) : layer(x);
    const at::Tensor between = torch::randn({3}); // as the next layer draws
    x.mutable_grad() = at::Tensor();
    y.sum().backward();
    return std::vector<at::Tensor>{y, between, x.grad(), torch::randn({3})};
  };
  const auto plain = trained(false), recomputed = trained(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(recomputed[i].equal(plain[i])) << i;
  }
}

TEST(DropoutTest, OtherTypesAndSecondDerivatives) {
  torch::manual_seed(5);
  const at::Tensor wide = torch::randn({50}).requires_grad_(),
                   half = torch::randn({50}).to(at::kBFloat16).requires_grad_();
  const at::Tensor sum = add_dropout(half, wide, 0.5);
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
  sum.sum().backward();
  EXPECT_EQ(half.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(dropout(torch::ones({1000}, at::kDouble), 0.5).scalar_type(), at::kDouble); // at::dropout's

  const at::Tensor x = torch::randn({50}).requires_grad_();
  const at::Tensor y = dropout(x, 0.5);
  const at::Tensor factor = (y / x).detach();
  const at::Tensor dy = torch::randn({50}).requires_grad_();
  const at::Tensor dx = torch::autograd::grad({y}, {x}, {dy}, true, /*create_graph=*/true)[0];
  const at::Tensor again = torch::autograd::grad({dx.sum()}, {dy})[0];
  EXPECT_TRUE(at::allclose(again, factor));
}

} // namespace
} // namespace trireme::fused
