// Replicas that step by themselves and meet every few steps: the same numbers as the papers' formulas in one process, and as data parallelism with H = 1.
#include "averaging_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

using test::run_ranks;
using testing::IsEmpty;

struct Kind {
  std::string name;
  AveragingOptions options;
  bool adam = false;
};

class AveragingTest : public testing::TestWithParam<std::tuple<Kind, int>> {};

TEST_P(AveragingTest, EqualsTheFormulaWithAllReplicasInOneProcess) {
  const auto& [kind, replicas] = GetParam();
  EXPECT_THAT(run_ranks(replicas,
                        [&kind = kind](comm::World& world) {
                          torch::manual_seed(7);
                          AveragingRun run(world, averaging_config(kind.options, kind.adam));
                          PlainReplicas plain(world.size(), kind.options, kind.adam);
                          for (int64_t step = 1; step <= 10; ++step) {
                            const double loss = run.train(1);
                            const std::vector<double> losses = plain.step(step);
                            EXPECT_NEAR(loss, step % kind.options.every == 0 ? mean_of(losses) : losses[world.rank()], 3e-5) << "step " << step;
                            const auto mine = run.parameters();
                            const auto theirs = plain.parameters(world.rank());
                            for (size_t i = 0; i < mine.size(); ++i) {
                              EXPECT_TRUE(torch::allclose(mine[i], theirs[i], 1e-4, 2e-5)) << "step " << step << ", parameter " << i << " by " << (mine[i] - theirs[i]).abs().max();
                            }
                          }
                        }),
              IsEmpty());
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const bool adam : {false, true}) {
    const std::string inner = adam ? "adamw_" : "sgd_";
    all.push_back({inner + "mean", {.every = 3}, adam});
    all.push_back({inner + "slowmo", {.every = 3, .outer = Outer::slowmo, .outer_lr = 0.9, .outer_momentum = 0.6}, adam});
    all.push_back({inner + "nesterov", {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9}, adam});
  }
  all.push_back({"adamw_average", {.every = 3, .states = States::average}, true});
  all.push_back({"adamw_reset", {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9, .states = States::reset}, true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, AveragingTest, testing::Combine(testing::ValuesIn(kinds()), testing::Values(1, 2, 3)),
                         [](const auto& info) { return concat(std::get<0>(info.param).name, "_", std::get<1>(info.param)); });

TEST(AveragingEveryStepTest, WithPlainSgdIsDataParallelism) {
  for (const int ranks : {2, 3}) {
    EXPECT_THAT(run_ranks(ranks,
                          [](comm::World& world) {
                            torch::manual_seed(7);
                            AveragingRun averaged(world, averaging_config({.every = 1}, false, 0));
                            torch::manual_seed(7);
                            AveragingRun together(world, averaging_config({}, false, 0));
                            for (int step = 1; step <= 20; ++step) {
                              EXPECT_NEAR(averaged.train(1), together.train(1), 2e-6) << "step " << step;
                            }
                            for (size_t i = 0; i < together.parameters().size(); ++i) {
                              const at::Tensor one = averaged.parameters()[i];
                              const at::Tensor other = together.parameters()[i];
                              EXPECT_TRUE(torch::allclose(one, other, 1e-5, 1e-6)) << "parameter " << i << " by " << (one - other).abs().max();
                            }
                          }),
                IsEmpty());
  }
}

// Two replicas of two stages, or of two tensor ranks, and replicas alone.
TEST(AveragingLayoutTest, ReplicasOfSeveralRanksEqualTheFormula) {
  const AveragingOptions options{.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9};
  for (const auto& [stages, tensor] : {std::pair(2, 1), std::pair(1, 2)}) {
    EXPECT_THAT(run_ranks(4,
                          [&, stages = stages, tensor = tensor](comm::World& world) {
                            torch::manual_seed(7);
                            AveragingRun run(world, averaging_config(options, true), stages, tensor);
                            PlainReplicas plain(2, options, true);
                            for (int64_t step = 1; step <= 7; ++step) {
                              const double loss = run.train(1);
                              const std::vector<double> losses = plain.step(step);
                              EXPECT_NEAR(loss, step % 3 == 0 ? mean_of(losses) : losses[run.engine().group().rank()], 5e-5) << "step " << step << ", stages " << stages;
                            }
                          }),
                IsEmpty());
  }
}

} // namespace
} // namespace trireme::engine
