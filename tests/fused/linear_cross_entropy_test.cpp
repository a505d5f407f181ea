// The last layer and its loss in chunks of rows: the loss and gradients of all logits at once, without their memory.
#include <trireme/fused/linear_cross_entropy.h>

#include <tests/support/peak_bytes.h>
#include <trireme/base/error.h>
#include <trireme/fused/fused.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>

namespace trireme::fused {
namespace {

struct Head {
  at::Tensor x, weight, target;
};

Head make_head(int64_t rows, int64_t hidden, int64_t classes, at::ScalarType type) {
  torch::manual_seed(11);
  Head head = {torch::randn({rows, hidden}).to(type), (torch::randn({classes, hidden}) * 0.3).to(type),
               torch::arange(rows) * 7 % classes};
  head.target[1] = -100;
  return head;
}

struct LossAndGradients {
  at::Tensor loss, x, weight;
};

/// Of 3 times the loss.
template <class F>
LossAndGradients differentiate(const Head& head, const F& loss_of) {
  const at::Tensor x = head.x.clone().set_requires_grad(true), weight = head.weight.clone().set_requires_grad(true);
  const at::Tensor loss = loss_of(x, weight);
  (loss * 3).backward();
  return {loss.detach(), x.grad(), weight.grad()};
}

ClassColumns columns_of_all(const at::Tensor& target) {
  return {target.clamp_min(0), target.ne(-100), {}};
}

LossAndGradients in_chunks(const Head& head, bool mean, const LogitCut& cut) {
  return differentiate(head, [&](const at::Tensor& x, const at::Tensor& weight) {
    return linear_cross_entropy(x, weight, columns_of_all(head.target), mean, cut);
  });
}

LossAndGradients at_once(const Head& head, int64_t reduction) {
  return differentiate(head, [&](const at::Tensor& x, const at::Tensor& weight) {
    return cross_entropy(at::linear(x, weight), head.target, reduction);
  });
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, double allowed, const char* what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_EQ(found.scalar_type(), expected.scalar_type()) << what;
  const double largest = expected.abs().max().item<double>();
  EXPECT_LE((found.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(), allowed * largest) << what;
}

TEST(LinearCrossEntropyTest, ChunksAndPaddingChangeNothing) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double allowed = type == at::kDouble ? 1e-14 : type == at::kFloat ? 2e-6 : 8e-3;
    const Head head = make_head(37, 16, 101, type);
    for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
      const LossAndGradients expected = at_once(head, reduction);
      for (const LogitCut& cut : {LogitCut{37, 0}, {37, 27}, {1, 0}, {8, 27}, {36, 27}, {100, 3}}) {
        const LossAndGradients found = in_chunks(head, reduction == at::Reduction::Mean, cut);
        expect_near(found.loss, expected.loss, std::min(allowed, 1e-6), "loss");
        expect_near(found.x, expected.x, allowed, "gradient of x");
        expect_near(found.weight, expected.weight, allowed, "gradient of the weight");
        EXPECT_EQ(found.x[1].abs().max().item<double>(), 0) << "ignored";
      }
    }
  }
}

// Each of 64 chunks adds less than half a unit in the last place of what bf16 would hold by then.
TEST(LinearCrossEntropyTest, GradientsOfABf16WeightAreAddedInFp32) {
  const Head head = make_head(256, 16, 40, at::kBFloat16);
  Head exact = {head.x.to(at::kDouble), head.weight.to(at::kDouble), head.target};
  const at::Tensor expected = at_once(exact, at::Reduction::Mean).weight;
  const auto error = [&](int64_t rows) {
    const at::Tensor found = in_chunks(head, true, {rows, 0}).weight;
    return (found.to(at::kDouble) - expected).norm().item<double>() / expected.norm().item<double>();
  };
  EXPECT_LT(error(4), 1.5 * error(256));
}

TEST(LinearCrossEntropyTest, OnlyTheLogitsOfAChunkExist) {
  constexpr int64_t kRows = 2048, kHidden = 8, kClasses = 3000, kFloats = 4;
  const Head head = make_head(kRows, kHidden, kClasses, at::kFloat);
  const int64_t logits = kRows * kClasses * kFloats, most_bytes = logits / 16;
  const LogitCut cut = cut_logits(kRows, kClasses, at::kFloat, at::kCPU, most_bytes);
  EXPECT_EQ(cut.rows, 128);
  const int64_t others = 4 * (kRows + kClasses) * kHidden * kFloats + 16 * kRows * kFloats; // parameters, gradients
  EXPECT_GE(test::peak_of([&] { at_once(head, at::Reduction::Mean); }), logits);
  const int64_t peak = test::peak_of([&] { in_chunks(head, true, cut); });
  EXPECT_GE(peak, most_bytes);
  EXPECT_LE(peak, most_bytes + others);
}

TEST(LinearCrossEntropyTest, TheCutFollowsFromBytes) {
  EXPECT_EQ(logit_chunk_rows(1000, 100, 100'000), 1000) << "they fit";
  EXPECT_EQ(logit_chunk_rows(1001, 100, 100'000), 512) << "two chunks";
  EXPECT_EQ(logit_chunk_rows(1000, 100'000, 1), 1);
  EXPECT_EQ(logit_chunk_rows(0, 100, 1000), 0);
  for (const int64_t rows : {63, 64, 1000, 4097, 65536}) {
    for (const int64_t fit : {1, 63, 64, 100, 640, 5000}) {
      const int64_t chunk = logit_chunk_rows(rows, 100, fit * 100);
      EXPECT_GE(chunk, 1);
      EXPECT_LE(chunk, std::min(rows, fit)) << rows << " rows, " << fit << " fit";
    }
  }
  EXPECT_EQ(cut_logits(4096, 50257, at::kBFloat16, at::Device(at::kCUDA, 0)).padding, 47);
  EXPECT_EQ(cut_logits(4096, 50304, at::kBFloat16, at::Device(at::kCUDA, 0)).padding, 0);
  EXPECT_EQ(cut_logits(4096, 50257, at::kBFloat16, at::kCPU).padding, 0);
  EXPECT_EQ(cut_logits(64, 50257, at::kBFloat16, at::Device(at::kCUDA, 0)).padding, 0) << "few rows";
  const Head head = make_head(8, 4, 10, at::kFloat);
  EXPECT_FALSE(takes_chunks(head.x, head.weight, {8, 0}, 8));
  EXPECT_TRUE(takes_chunks(head.x, head.weight, {8, 118}, 8));
  EXPECT_TRUE(takes_chunks(head.x, head.weight, {4, 0}, 8));
  EXPECT_FALSE(takes_chunks(head.x.to(at::kHalf), head.weight, {4, 0}, 8));
}

TEST(LinearCrossEntropyTest, AutocastMultipliesInItsType) {
  const Head head = make_head(9, 16, 33, at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const LossAndGradients found = in_chunks(head, true, {4, 0});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  Head half = {head.x.to(at::kBFloat16), head.weight.to(at::kBFloat16), head.target};
  const LossAndGradients expected = in_chunks(half, true, {4, 0});
  EXPECT_TRUE(found.loss.equal(expected.loss));
  EXPECT_TRUE(found.weight.equal(expected.weight.to(at::kFloat)));
}

TEST(LinearCrossEntropyTest, GradientsThatNobodyWantsAndASecondBackward) {
  const Head head = make_head(9, 16, 33, at::kFloat);
  const ClassColumns classes = columns_of_all(head.target);
  const at::Tensor x = head.x.clone().set_requires_grad(true);
  const at::Tensor loss = linear_cross_entropy(x, head.weight, classes, true, {4, 0});
  const at::Tensor constant = linear_cross_entropy(head.x, head.weight, classes, true, {4, 0});
  EXPECT_FALSE(constant.requires_grad());
  EXPECT_TRUE(constant.equal(loss.detach()));
  loss.backward({}, /*keep_graph=*/true);
  EXPECT_THROW(loss.backward(), Error);
  EXPECT_THROW(
      torch::autograd::grad({linear_cross_entropy(x, head.weight, classes, true, {4, 0})}, {x}, {}, true, true), Error);
  EXPECT_THROW(linear_cross_entropy(x, head.weight.slice(1, 1), classes, true, {4, 0}), InputError);
}

// A pipeline asks for the gradient of the input first, and later for the weight's.
TEST(LinearCrossEntropyTest, HalvesOfASplitBackward) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Head head = make_head(37, 16, 101, type);
    const LogitCut cut = {8, 27};
    const LossAndGradients expected = in_chunks(head, true, cut);
    const at::Tensor x = head.x.clone().set_requires_grad(true), weight = head.weight.clone().set_requires_grad(true);
    const at::Tensor loss = linear_cross_entropy(x, weight, columns_of_all(head.target), true, cut) * 3;
    const auto half = [&](const at::Tensor& of) { return torch::autograd::grad({loss}, {of}, {}, true)[0]; };
    EXPECT_TRUE(half(x).equal(expected.x));
    EXPECT_TRUE(half(weight).equal(expected.weight));
    EXPECT_THROW(half(x), Error);
    EXPECT_THROW(half(weight), Error);
  }
}

} // namespace
} // namespace trireme::fused
