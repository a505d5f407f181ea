// Replicas that step by themselves and meet every few steps: the same numbers as the papers' formulas in one process,
// and as data parallelism with H = 1.
#include "averaging_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;

struct Kind {
  std::string name;
  AveragingOptions options;
  bool adam = false;
};

class AveragingTest : public testing::TestWithParam<std::tuple<Kind, int>> {};

TEST_P(AveragingTest, EqualsTheFormulaWithAllReplicasInOneProcess) {
  const auto& [kind, replicas] = GetParam();
  on_ranks(replicas, [&kind = kind](comm::World& world) {
    torch::manual_seed(7);
    AveragingRun run(world, averaging_config(kind.options, kind.adam));
    PlainReplicas plain(world.size(), kind.options, kind.adam);
    for (int64_t step = 1; step <= 10; ++step) {
      const double loss = run.train(1);
      const std::vector<double> losses = plain.step(step);
      EXPECT_NEAR(loss, step % kind.options.every == 0 ? mean_of(losses) : losses[world.rank()], 3e-5)
          << "step " << step;
      const auto mine = run.parameters();
      const auto theirs = plain.parameters(world.rank());
      for (size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(torch::allclose(mine[i], theirs[i], 1e-4, 2e-5))
            << "step " << step << ", parameter " << i << " by " << (mine[i] - theirs[i]).abs().max();
      }
    }
  });
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const bool adam : {false, true}) {
    const std::string inner = adam ? "adamw_" : "sgd_";
    all.push_back({inner + "mean", {.every = 3}, adam});
    all.push_back(
        {inner + "slowmo", {.every = 3, .outer = Outer::slowmo, .outer_lr = 0.9, .outer_momentum = 0.6}, adam});
    all.push_back(
        {inner + "nesterov", {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9}, adam});
  }
  all.push_back({"adamw_average", {.every = 3, .states = States::average}, true});
  all.push_back(
      {"adamw_reset",
       {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9, .states = States::reset},
       true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, AveragingTest, testing::Combine(testing::ValuesIn(kinds()), testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param).name, "_", std::get<1>(info.param));
                         });

TEST(AveragingEveryStepTest, WithPlainSgdIsDataParallelism) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](comm::World& world) {
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
        EXPECT_TRUE(torch::allclose(one, other, 1e-5, 1e-6))
            << "parameter " << i << " by " << (one - other).abs().max();
      }
    });
  }
}

// Then as a run that continues data parallelism's checkpoint, which checkpoint_test.cpp compares with the formula.
TEST(AveragingWarmUpTest, IsDataParallelismUpToStartStep) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("trireme_averaging_warm_up_", ::getpid());
  for (const auto& [ranks, type] : {std::pair(2, precision::Type::fp32), std::pair(3, precision::Type::fp32),
                                    std::pair(2, precision::Type::bf16)}) {
    on_ranks(ranks, [&, type = type](comm::World& world) {
      const auto config = [type](const AveragingOptions& options) {
        config::EngineConfig made = averaging_config(options, true);
        made.precision.compute = type;
        return made;
      };
      AveragingOptions options{.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9};
      AveragingRun later(world, config(options));
      options.start_step = 5;
      AveragingRun run(world, config(options));
      AveragingRun together(world, config({}));
      const double tolerance = type == precision::Type::fp32 ? 1e-5 : 0; // bf16 hides the last digits of the norm
      for (int step = 1; step <= 5; ++step) {
        EXPECT_NEAR(run.train(1), together.train(1), tolerance) << "step " << step;
        EXPECT_NEAR(*run.engine().get_global_grad_norm(), *together.engine().get_global_grad_norm(), 1e-5)
            << "step " << step;
      }
      together.engine().save_checkpoint(folder);
      later.engine().load_checkpoint(folder);
      for (int step = 6; step <= 12; ++step) {
        const int64_t before = run.engine().bytes_sent();
        EXPECT_NEAR(run.train(1), later.train(1), type == precision::Type::fp32 ? 3e-5 : 1e-2) << "step " << step;
        EXPECT_EQ(run.engine().bytes_sent() == before, step % 3 != 0) << "step " << step;
      }
    });
    std::filesystem::remove_all(folder);
  }
}

// A parameter that one replica does not use has a gradient on the others, and they step it together.
TEST(AveragingWarmUpTest, AParameterThatOneReplicaDoesNotUseIsTheSameOnAll) {
  on_ranks(2, [](comm::World& world) {
    const torch::nn::Linear used(4, 4);
    const torch::nn::Linear sometimes(4, 4);
    auto model = std::make_shared<torch::nn::Module>();
    model->register_module("used", used.ptr());
    model->register_module("sometimes", sometimes.ptr());
    InitializeOptions options;
    options.model = model;
    options.loss = [&](const data::Batch& batch) {
      const at::Tensor out = used->weight.matmul(batch.input());
      return (world.rank() == 0 ? out + sometimes->weight.matmul(batch.input()) : out).square().mean();
    };
    options.config = averaging_config({.every = 3, .start_step = 4}, true);
    options.config.batch = {};
    options.config.batch.micro = 1;
    const auto engine = initialize(world, options).engine;
    for (int step = 1; step <= 4; ++step) {
      const at::Tensor start = sometimes->weight.detach().clone();
      engine->train_batch([&] { return data::Batch{{torch::ones({4}) + world.rank()}, {}, 1}; });
      at::Tensor first = sometimes->weight.detach().clone();
      EXPECT_FALSE(first.equal(start));
      world.group().broadcast(first, 0).wait();
      EXPECT_TRUE(sometimes->weight.equal(first)) << "step " << step;
    }
  });
}

// After the same samples, with 1/50 of the traffic.
TEST(AveragingConvergenceTest, TheOuterOptimizerKeepsUpWithDataParallelism) {
  on_ranks(2, [](comm::World& world) {
    const auto loss_with = [&](const AveragingOptions& options) {
      AveragingRun run(world, averaging_config(options, true));
      const double first = run.train(1);
      run.train(299);
      const data::Batch batch = Counting().get(std::vector<int64_t>{3, 17, 40, 77, 101, 150});
      const double last = run.engine().eval_batch(batch).item<double>();
      EXPECT_LT(last, 0.5 * first);
      return last;
    };
    const double together = loss_with({});
    const double outer =
        loss_with({.every = 50, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9, .start_step = 100});
    const double mean = loss_with({.every = 50, .start_step = 100});
    EXPECT_LT(outer, 1.05 * together);
    EXPECT_LT(outer, mean);
  });
}

// Two replicas of two stages, or of two tensor ranks, and replicas alone.
TEST(AveragingLayoutTest, ReplicasOfSeveralRanksEqualTheFormula) {
  const AveragingOptions options{.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9};
  for (const auto& [stages, tensor] : {std::pair(2, 1), std::pair(1, 2)}) {
    on_ranks(4, [&, stages = stages, tensor = tensor](comm::World& world) {
      torch::manual_seed(7);
      AveragingRun run(world, averaging_config(options, true), stages, tensor);
      PlainReplicas plain(2, options, true);
      for (int64_t step = 1; step <= 7; ++step) {
        const double loss = run.train(1);
        const std::vector<double> losses = plain.step(step);
        EXPECT_NEAR(loss, step % 3 == 0 ? mean_of(losses) : losses[run.engine().group().rank()], 5e-5)
            << "step " << step << ", stages " << stages;
      }
    });
  }
}

} // namespace
} // namespace trireme::engine
