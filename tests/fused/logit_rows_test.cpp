// Cross-entropy where there is no kernel of ours: in fp32 whatever the type of the logits, some rows at a time.
#include <trireme/fused/logit_rows.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>

#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/utils.h>

namespace trireme::fused {
namespace {

/// Loss and gradient of logits that have no kernel of ours: ATen's operations.
void expect_exact_loss(at::ScalarType type, int64_t rows, int64_t classes, int64_t reduction, Logits after) {
  const at::Tensor values = (torch::randn({rows, classes}) * 2 + 10).to(type);
  const at::Tensor target = torch::arange(rows) * 5 % classes;
  target[1] = -100;
  const at::Tensor exact = values.to(at::kDouble).requires_grad_();
  const at::Tensor expected = at::cross_entropy_loss(exact, target, {}, reduction);
  (expected * 3).backward();
  const at::Tensor x = values.clone().requires_grad_();
  const at::Tensor loss = cross_entropy(x * 1, target, reduction, -100, after);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
  (loss * 3).backward();
  const at::Tensor found = x.grad().to(at::kDouble);
  const double largest = exact.grad().abs().max().item<double>();
  EXPECT_LT((found - exact.grad()).abs().max().item<double>(), 4e-3 * largest) << "rounded once";
  EXPECT_LT(found.sum(1).abs().max().item<double>(), 4e-3 * largest);
  EXPECT_EQ(found[1].abs().max().item<double>(), 0) << "ignored";
}

// On a GPU, and for fp16 here. ATen's own loss of such logits is 11 where 10.935 is right.
TEST(LogitRowsTest, HalfLogitsWithoutAKernelHaveAnExactLoss) {
  torch::manual_seed(4);
  for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
    for (const Logits after : {Logits::keep, Logits::overwrite}) {
      expect_exact_loss(at::kHalf, 9, 1000, reduction, after);
    }
  }
  const at::Tensor x = torch::randn({4, 10}).to(at::kHalf).requires_grad_();
  EXPECT_THROW(cross_entropy(x, torch::tensor({0, 1, 10, 2}, at::kLong), at::Reduction::Mean), InputError);
  const at::Tensor loss = cross_entropy(x * 1, torch::arange(4), at::Reduction::Mean, -100, Logits::overwrite);
  loss.backward({}, /*keep_graph=*/true);
  EXPECT_THROW(loss.backward(), Error) << "the logits are gone";
  EXPECT_THROW(torch::autograd::grad({cross_entropy(x, torch::arange(4), at::Reduction::Sum)}, {x}, {}, true, true),
               Error);
  EXPECT_TRUE(cross_entropy(x, torch::full({4}, -100), at::Reduction::Mean).isnan().item<bool>()) << "as ATen's";
}

TEST(LogitRowsTest, RowsMayBeComputedInPieces) {
  torch::manual_seed(5);
  const at::Tensor logits = torch::randn({7, 30}).to(at::kHalf), columns = torch::arange(7) * 4 - 1; // one negative
  const at::Tensor counts = torch::arange(7).ne(2), factor = torch::full({}, 0.5);
  const at::Tensor whole = logit_row_terms(logits, columns), gradient = torch::empty_like(logits);
  EXPECT_TRUE(whole[0].allclose(at::logsumexp(logits.to(at::kFloat), {1})));
  EXPECT_EQ(whole[1][0].item<float>(), 0) << "no column";
  write_logit_gradient(gradient, logits, columns, counts, whole[0], factor);
  for (const int64_t at_once : {1, 30, 65, 1000}) {
    EXPECT_TRUE(logit_row_terms(logits, columns, at_once).equal(whole)) << at_once;
    const at::Tensor in_place = logits.clone();
    write_logit_gradient(in_place, in_place, columns, counts, whole[0], factor, at_once);
    EXPECT_TRUE(in_place.equal(gradient)) << at_once;
  }
  EXPECT_TRUE(logit_row_terms(torch::empty({2, 0}), torch::full({2}, -1))[0].isneginf().all().item<bool>());
}

} // namespace
} // namespace trireme::fused
