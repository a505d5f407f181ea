// What replicas that step by themselves send, evaluate, skip and refuse.
#include "averaging_run.h"

#include <trireme/data/target_counts.h>
#include <trireme/engine/preemption.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <signal.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>

namespace trireme::engine {
namespace {

using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

constexpr int64_t kWidth = 64;
constexpr int64_t kRows = 6; // of each replica

/// One weight without gaps in the flat buffer, and running means.
struct NormRun {
  torch::nn::Linear linear{torch::nn::LinearOptions(kWidth, kWidth).bias(false)};
  torch::nn::BatchNorm1d norm{torch::nn::BatchNorm1dOptions(kWidth).affine(false)};
  Initialized made;
  int rank;

  NormRun(comm::World& world, const AveragingOptions& averaging, bool with_norm = true) : rank(world.rank()) {
    InitializeOptions options;
    auto model = std::make_shared<torch::nn::Module>();
    model->register_module("linear", linear.ptr());
    if (with_norm) {
      model->register_module("norm", norm.ptr());
    }
    options.model = model;
    options.loss = [this, with_norm](const data::Batch& batch) {
      const at::Tensor out = linear->forward(batch.input());
      return ((with_norm ? norm->forward(out) : out) - batch.target()).square().mean();
    };
    options.config = averaging_config(averaging);
    options.config.batch = {};
    options.config.batch.micro = kRows;
    made = initialize(world, options);
  }
  data::Batch batch(int number, int of_rank) const {
    const at::Tensor x =
        torch::sin(torch::arange(kRows * kWidth, torch::kFloat32).view({kRows, kWidth}) * (1.1 + of_rank) + number) +
        of_rank;
    return {{x}, {x.flip(1)}, kRows};
  }
  double step(int number) {
    return made.engine->train_batch([&] { return batch(number, rank); }).item<double>();
  }
};

// What a rank sends in its collectives of P bytes: 2P(N-1)/N, and nothing between two meetings, module buffers and
// times of steps included.
TEST(AveragingTrafficTest, NothingTravelsBetweenTwoMeetings) {
  for (const auto outer : {Outer::none, Outer::nesterov}) {
    for (const int ranks : {2, 4}) {
      on_ranks(ranks, [&](comm::World& world) {
        constexpr int64_t kEvery = 10;
        NormRun run(world, {.every = kEvery, .outer = outer});
        NormRun plain(world, {.every = kEvery, .outer = outer}, /*with_norm=*/false);
        const int64_t n = world.size();
        const int64_t parameters = 2 * kWidth * kWidth * 4 * (n - 1) / n;
        const int64_t loss = 2 * 24 * (n - 1) / n;
        const auto sent_by = [&](NormRun& one, int64_t step) {
          const int64_t before = one.made.engine->bytes_sent();
          one.step(static_cast<int>(step));
          return one.made.engine->bytes_sent() - before;
        };
        sent_by(run, 1); // the first values of module buffers
        EXPECT_EQ(sent_by(plain, 1), 0);
        for (int64_t step = 2; step <= 4 * kEvery; ++step) {
          const int64_t sent = sent_by(run, step);
          const int64_t of_plain = sent_by(plain, step);
          if (step % kEvery != 0) {
            EXPECT_EQ(sent, 0) << "step " << step;
            EXPECT_EQ(of_plain, 0) << "step " << step;
            continue;
          }
          // The times of 8 steps go with a meeting: 48 numbers to each other rank.
          EXPECT_EQ(of_plain, parameters + loss + (n - 1) * 8 * 48)
              << "step " << step << ", outer " << static_cast<int>(outer);
          EXPECT_GE(sent, of_plain);
          EXPECT_LT(sent, of_plain + 4096) << "two running values of 64 features, and a count";
        }
      });
    }
  }
}

/// Eight zeros as input and one of ten classes as target, of which the samples of an odd number do not count.
class EvenSamplesCount : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch get(std::span<const int64_t> indices) const override {
    const int64_t rows = std::ssize(indices);
    at::Tensor targets = at::full({rows}, data::kIgnoredTarget, at::kLong);
    for (int64_t row = 0; row < rows; ++row) {
      if (indices[row] % 2 == 0) {
        targets[row] = indices[row] % 10;
      }
    }
    return {{at::zeros({rows, 8})}, {targets}, rows};
  }
  bool masks_targets() const override { return true; }
  int64_t counted_targets(std::span<const int64_t> indices) const override {
    return std::ranges::count_if(indices, [](int64_t index) { return index % 2 == 0; });
  }
  std::string describe() const override { return "even samples count"; }
};

// Each replica steps by its own mean, so an untrained model has the loss of chance however few of its targets count.
TEST(AveragingLossTest, ALocalStepWeighsItsOwnTargets) {
  for (const int64_t start : {0, 4}) { // the first steps sum their gradients
    on_ranks(2, [start](comm::World& world) {
      torch::nn::Linear linear(torch::nn::LinearOptions(8, 10).bias(false));
      InitializeOptions options;
      options.model = linear.ptr();
      options.loss = [&](const data::Batch& batch) {
        return at::cross_entropy_loss(linear->forward(batch.input()), batch.target(), {}, at::Reduction::Mean,
                                      data::kIgnoredTarget);
      };
      options.config = averaging_config({.every = 3, .start_step = start});
      options.config.batch = {};
      options.config.batch.micro = 4;
      options.config.batch.accumulation = 2;
      options.training_data = std::make_shared<EvenSamplesCount>();
      const Initialized made = initialize(world, options);
      for (int step = 1; step <= 12; ++step) {
        EXPECT_NEAR(made.engine->train_batch().item<double>(), std::log(10), 1e-5) << "step " << step;
      }
    });
  }
}

TEST(AveragingTrafficTest, ModuleBuffersAreTheFirstReplicasFromAMeetingOn) {
  on_ranks(2, [](comm::World& world) {
    NormRun run(world, {.every = 3});
    for (int step = 1; step <= 6; ++step) {
      run.step(step);
      at::Tensor first = run.norm->running_mean.clone();
      world.group().broadcast(first, 0).wait();
      if (world.rank() == 1) {
        EXPECT_EQ(run.norm->running_mean.equal(first), step % 3 == 0) << "step " << step;
      }
    }
  });
}

// Between two meetings: of the mean of the replicas, which then are as they were.
TEST(AveragingEvaluationTest, IsOfTheMeanOfTheReplicas) {
  on_ranks(3, [](comm::World& world) {
    AveragingRun run(world, averaging_config({.every = 4}, true));
    PlainReplicas plain(3, {.every = 4}, true);
    for (int64_t step = 1; step <= 5; ++step) {
      run.train(1);
      plain.step(step);
      const auto own = run.copied_parameters();
      const data::Batch batch = Counting().get(std::vector<int64_t>{1 + world.rank(), 5, 9});
      models::Gpt mean(small_gpt());
      const auto means = plain.mean();
      double expected = 0;
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < means.size(); ++i) {
          mean->parameters()[i].copy_(means[i]);
        }
        mean->eval();
        for (int64_t rank = 0; rank < 3; ++rank) {
          const data::Batch theirs = Counting().get(std::vector<int64_t>{1 + rank, 5, 9});
          expected += mean->loss(theirs.input(), theirs.target()).item<double>() / 3;
        }
      }
      EXPECT_NEAR(run.engine().eval_batch(batch).item<double>(), expected, 2e-5) << "step " << step;
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_TRUE(run.parameters()[i].equal(own[i])) << "step " << step << ", parameter " << i;
      }
    }
  });
}

TEST(AveragingEvaluationTest, ModuleBuffersAreTheFirstReplicasAndThenOnesOwn) {
  on_ranks(2, [](comm::World& world) {
    NormRun run(world, {.every = 4});
    run.step(1);
    const at::Tensor own = run.norm->running_var.clone();
    at::Tensor first = own.clone();
    world.group().broadcast(first, 0).wait();
    {
      const auto mean = run.made.engine->mean_of_replicas();
      EXPECT_NE(mean, nullptr);
      EXPECT_TRUE(run.norm->running_var.equal(first));
      at::Tensor weight = run.linear->weight.detach().clone();
      world.group().broadcast(weight, 0).wait();
      EXPECT_TRUE(run.linear->weight.equal(weight)) << "the same on all ranks";
      run.made.engine->eval_batch(run.batch(2, world.rank()));
      EXPECT_THAT(test::error_of([&] { run.step(2); }), HasSubstr("has the mean of the replicas"));
    }
    EXPECT_TRUE(run.norm->running_var.equal(own));
    EXPECT_EQ(run.norm->running_var.equal(first), world.rank() == 0);
    for (int step = 2; step <= 4; ++step) {
      run.step(step);
    }
    EXPECT_EQ(run.made.engine->mean_of_replicas(), nullptr) << "they have met";
  });
}

// Of bf16 parameters the fp32 masters are averaged. A step without a gradient leaves what the ranks agree on.
TEST(AveragingPrecisionTest, MastersAreAveragedWithAllTheirDigits) {
  for (const auto outer : {Outer::none, Outer::nesterov}) {
    on_ranks(2, [&](comm::World& world) {
      config::EngineConfig config =
          averaging_config({.every = 3, .outer = outer, .outer_lr = 0.5, .outer_momentum = 0});
      config.precision.compute = Type::bf16;
      AveragingRun run(world, config);
      const auto masters = [&] {
        std::map<std::string, at::Tensor> all;
        run.made.optimizer->for_each_state([&](const std::string&, const bucket::TensorInfo& tensor, int64_t,
                                               const at::Tensor& values) { all[tensor.name] = values.clone(); },
                                           false);
        return all;
      };
      const auto start = masters();
      run.train(2);
      auto expected = masters();
      run.weight = 0;
      run.train(1);
      const auto met = masters();
      for (auto& [name, mean] : expected) {
        const at::Tensor own = mean.clone();
        world.group().all_reduce(mean).wait();
        mean /= 2;
        if (outer == Outer::nesterov) {
          mean = start.at(name) - 0.5 * (start.at(name) - mean);
        }
        EXPECT_TRUE(torch::allclose(met.at(name), mean, 1e-6, 1e-8))
            << name << " by " << (met.at(name) - mean).abs().max();
        at::Tensor parameter;
        for (const auto& item : run.engine().module().named_parameters()) {
          parameter = item.key() == name ? item.value().detach().flatten() : parameter;
        }
        EXPECT_TRUE(parameter.equal(met.at(name).to(torch::kBFloat16))) << name;
      }
    });
  }
}

TEST(AveragingSkipTest, ARankSkipsByItselfAndAllOfThemAtAMeeting) {
  for (const int not_finite_in : {2, 3}) {
    on_ranks(3, [&](comm::World& world) {
      AveragingRun run(
          world,
          averaging_config({.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9}, true));
      run.not_finite_in = world.rank() == 0 ? not_finite_in : -1;
      run.train(3);
      EXPECT_EQ(run.engine().skipped_steps(), not_finite_in == 3 || world.rank() == 0 ? 1 : 0);
      EXPECT_EQ(run.engine().global_steps(), 3);
      for (const at::Tensor& parameter : run.copied_parameters()) {
        at::Tensor first = parameter.clone();
        world.group().broadcast(first, 0).wait();
        EXPECT_TRUE(parameter.equal(first)) << "they met all the same";
      }
      EXPECT_TRUE(std::isfinite(run.train(3)));
    });
  }
}

// A rank that skipped all steps of a round has not moved: its part of the outer step begins where it still is.
TEST(AveragingSkipTest, ARoundWithoutAStepCountsAsOneThatDidNotMove) {
  on_ranks(2, [](comm::World& world) {
    AveragingRun run(world,
                     averaging_config({.every = 1, .outer = Outer::nesterov, .outer_lr = 1, .outer_momentum = 0.5}));
    run.train(2);
    run.weight = std::nan("");
    const auto before = run.copied_parameters();
    run.train(1); // the momentum alone moves them, by a quarter of itself
    EXPECT_EQ(run.engine().skipped_steps(), 1);
    bool moved = false;
    for (size_t i = 0; i < before.size(); ++i) {
      const at::Tensor change = (run.parameters()[i] - before[i]).abs();
      moved = moved || change.max().item<double>() > 0;
      EXPECT_LT(change.max().item<double>(), 0.1) << "parameter " << i;
    }
    EXPECT_TRUE(moved);
  });
}

TEST(AveragingStopTest, RanksStopAtAMeeting) {
  on_ranks(2, [](comm::World& world) {
    const Preemption preemption;
    AveragingRun run(world, averaging_config({.every = 4}));
    while (run.engine().global_steps() < 12 && !run.engine().stop_agreed()) {
      if (world.rank() == 1 && run.engine().global_steps() == 4) {
        ::raise(SIGUSR1);
      }
      run.train(1);
    }
    EXPECT_EQ(run.engine().global_steps(), 8);
  });
}

std::string refusal(comm::World& world, const std::function<void(InitializeOptions&)>& change) {
  InitializeOptions options;
  const models::Gpt model(small_gpt());
  options.model = model.ptr();
  options.loss = [](const data::Batch& batch) { return batch.input().sum(); };
  options.config = averaging_config({.every = 3});
  change(options);
  return test::error_of([&] { initialize(world, options); });
}

TEST(AveragingErrorTest, WhatNeedsAllReplicasInEveryStepIsRefused) {
  on_ranks(2, [](comm::World& world) {
    EXPECT_THAT(refusal(world, [](auto& options) { options.config.zero.stage = 1; }),
                HasSubstr("parameter_averaging with ZeRO stage 1"));
    EXPECT_THAT(
        refusal(world,
                [](auto& options) { options.sync = {.make = [](const parallel::ReduceGroups&) { return nullptr; }}; }),
        HasSubstr("parameter_averaging with a sync of its own"));
    EXPECT_THAT(
        refusal(world, [](auto& options) { options.config.data_parallel.op = parallel::DataParallelOptions::Op::sum; }),
        HasSubstr("parameter_averaging with gradient_allreduce_op"));
    EXPECT_THAT(refusal(world, [](auto& options) { options.config.precision.communication = Type::bf16; }),
                HasSubstr("parameter_averaging with communication_data_type"));
    EXPECT_THAT(refusal(world, [](auto& options) { options.config.data_parallel.sync_batch_norm = true; }),
                HasSubstr("parameter_averaging with sync_batch_norm"));
    EXPECT_THAT(
        refusal(world,
                [](auto& options) { options.config.optimizer = optim::OptimizerOptions{optim::OneBitAdamOptions()}; }),
        HasSubstr("parameter_averaging with OneBitAdam"));
    EXPECT_THAT(refusal(world,
                        [](auto& options) {
                          options.config.step_in_backward = true;
                          options.config.gradient_clipping = 0;
                        }),
                HasSubstr("step_in_backward with parameter_averaging"));
    EXPECT_THAT(
        refusal(world, [&](auto& options) { options.mesh = mesh::training_mesh(world.group(), {.context = 2}); }),
        HasSubstr("parameter_averaging with 2 context ranks"));
    EXPECT_THAT(refusal(world,
                        [&](auto& options) {
                          options.mesh = mesh::training_mesh(world.group(), {.tensor = 2});
                          options.sequence_parallel = true;
                        }),
                HasSubstr("parameter_averaging with sequence_parallel"));
    EXPECT_THAT(refusal(world, [&](auto& options) { options.config.averaging.every = 2 + world.rank(); }),
                HasSubstr("differ in parameter_averaging.every"));
  });
}

} // namespace
} // namespace trireme::engine
