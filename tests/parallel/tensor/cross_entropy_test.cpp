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

/// The last layer's loss in chunks, beside torch's of all logits on one rank.
void check_chunks(comm::World& world, bool splits_sequence, int64_t most_bytes) {
  constexpr int64_t kSamples = 2, kTokens = 12, kHidden = 8, kClasses = 41;
  const Ranks ranks{world.group(), splits_sequence};
  const auto values = [](at::IntArrayRef sizes, double step) {
    return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kDouble) * step)
        .reshape(sizes)
        .to(torch::kFloat);
  };
  const at::Tensor x = values({kSamples, kTokens, kHidden}, 1.7).set_requires_grad(true);
  const at::Tensor weight = values({kClasses, kHidden}, 0.9).set_requires_grad(true);
  const at::Tensor target = torch::arange(kSamples * kTokens) * 5 % kClasses;
  target[2] = -100;
  const at::Tensor expected = at::cross_entropy_loss(at::linear(x, weight).flatten(0, 1), target);
  (expected * 3).backward();

  const RankRange part = part_of(kClasses, ranks);
  const RankRange tokens = splits_sequence ? part_of(kTokens, ranks) : RankRange{0, kTokens};
  const at::Tensor my_x = x.detach().slice(1, tokens.begin, tokens.end).clone().set_requires_grad(true);
  const at::Tensor mine = weight.detach().slice(0, part.begin, part.end).clone().set_requires_grad(true);
  const at::Tensor loss =
      linear_cross_entropy(my_x, mine, target, kClasses, ranks, at::Reduction::Mean, -100, most_bytes);
  (loss * 3).backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-6 * expected.item<double>());
  EXPECT_TRUE(my_x.grad().allclose(x.grad().slice(1, tokens.begin, tokens.end), 1e-5, 1e-7));
  EXPECT_TRUE(mine.grad().allclose(weight.grad().slice(0, part.begin, part.end), 1e-5, 1e-7));
  target[0] = kClasses;
  EXPECT_THAT([&] { linear_cross_entropy(my_x, mine, target, kClasses, ranks); },
              ThrowsMessage<InputError>(HasSubstr("target 41 is outside [0, 41)")));
}

TEST(VocabParallelCrossEntropyTest, ChunksOfTheLastLayersLogitsHaveTheSameLoss) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](comm::World& world) {
      for (const bool splits_sequence : {false, true}) {
        for (const int64_t most_bytes : {1, 900, 100'000}) { // of a row, some rows, all
          check_chunks(world, splits_sequence, most_bytes);
        }
      }
    });
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
