// Cross-entropy of logits that no rank has whole equals torch's of all of them: loss, gradient, ignored rows, types,
// errors.
#include <trireme/parallel/tensor/cross_entropy.h>

#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::tensor {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

constexpr int64_t kRows = 6;

void check(comm::World& world, int64_t classes, at::ScalarType type, int64_t reduction) {
  const Ranks ranks{world.group()};
  const RankRange part = part_of(classes, ranks);
  const at::Tensor values =
      torch::sin(torch::arange(kRows * classes, torch::kDouble) * 1.7).mul(20).reshape({kRows, classes}).to(type);
  const at::Tensor target = torch::arange(kRows) * 5 % classes;
  target[2] = -100;
  const at::Tensor whole =
      values.clone().to(type == torch::kDouble ? torch::kDouble : torch::kFloat).set_requires_grad(true);
  const at::Tensor expected = at::cross_entropy_loss(whole, target, {}, reduction);
  (expected * 3).backward();

  const at::Tensor mine = values.slice(1, part.begin, part.end).contiguous().set_requires_grad(true);
  const at::Tensor loss = cross_entropy(mine * 1, target, classes, ranks, reduction);
  const double tolerance = type == torch::kDouble ? 1e-12 : 2e-6;
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), tolerance * std::abs(expected.item<double>()));
  EXPECT_EQ(loss.scalar_type(), type == torch::kDouble ? torch::kDouble : torch::kFloat);
  (loss * 3).backward();
  const at::Tensor gradient = whole.grad().slice(1, part.begin, part.end);
  const double of_gradient = at::isReducedFloatingType(type) ? 1e-2 : tolerance * 10;
  EXPECT_TRUE(mine.grad().to(whole.scalar_type()).allclose(gradient, of_gradient, of_gradient * 0.1))
      << mine.grad() - gradient;
}

TEST(VocabParallelCrossEntropyTest, EqualsTorchsOverAllClasses) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_THAT(run_ranks(ranks,
                          [&](comm::World& world) {
                            for (const int64_t classes : {4, 40, 101}) {
                              for (const at::ScalarType type :
                                   {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
                                for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
                                  check(world, classes, type, reduction);
                                }
                              }
                            }
                          }),
                IsEmpty())
        << ranks << " ranks";
  }
}

TEST(VocabParallelCrossEntropyTest, RefusesWhatItCannotCompute) {
  on_ranks(2, [](comm::World& world) {
    const Ranks ranks{world.group()};
    const at::Tensor logits = torch::zeros({2, 5});
    EXPECT_THAT([&] { cross_entropy(logits, torch::tensor({3, 10}), 10, ranks); },
                ThrowsMessage<InputError>(HasSubstr("target 10 is outside [0, 10)")));
    EXPECT_THAT([&] { cross_entropy(logits, torch::tensor({3, -1}), 10, ranks); },
                ThrowsMessage<InputError>(HasSubstr("target -1 is outside [0, 10)")));
    EXPECT_THAT([&] { cross_entropy(logits, torch::tensor({3, 9}), 12, ranks); },
                ThrowsMessage<InputError>(HasSubstr("expected logits [rows, 6], this rank's part of 12 classes")));
    EXPECT_THAT([&] { cross_entropy(logits, torch::tensor({3, 9}), 10, ranks, at::Reduction::None); },
                ThrowsMessage<InputError>(HasSubstr("mean or sum")));
  });
}

TEST(VocabParallelCrossEntropyTest, ASecondBackwardIsRefused) {
  on_ranks(2, [](comm::World& world) {
    const at::Tensor logits = torch::zeros({2, 5}).set_requires_grad(true);
    const at::Tensor loss = cross_entropy(logits * 2, torch::tensor({3, 9}), 10, {world.group()});
    loss.backward({}, /*keep_graph=*/true);
    EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<Error>(HasSubstr("second backward")));
  });
}

} // namespace
} // namespace trireme::tensor
