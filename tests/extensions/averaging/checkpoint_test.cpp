// Checkpoints of replicas that have states of their own: resumed bit for bit by as many, and by more or fewer.
#include "averaging_run.h"

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <filesystem>
#include <map>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using precision::Type;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

struct Resumed {
  std::string name;
  AveragingOptions options;
  bool adam = true;
  Type type = Type::fp32;
  optim::StateType states = optim::StateType::fp32;
  int stages = 1;
  int tensor = 1;

  config::EngineConfig config() const {
    config::EngineConfig config = averaging_config(options, adam);
    config.precision.compute = type;
    config.precision.loss_scale.initial_scale_power = 10;
    if (adam) {
      config.optimizer->state_type = states;
    }
    config.schedule =
        config::read_deepspeed(
            JsonNode::parse(R"({"train_batch_size": 48, "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 20}}})",
                            "test.json"))
            .schedule;
    return config;
  }
};

class CheckpointFolder {
 protected:
  CheckpointFolder() { fs::remove_all(folder_); }
  ~CheckpointFolder() { fs::remove_all(folder_); }
  fs::path folder_ = fs::path(testing::TempDir()) / concat("trireme_averaging_", ::getpid());
};

class AveragingResumeTest : public testing::TestWithParam<Resumed>, protected CheckpointFolder {};

// A rank that has skipped a step alone is behind in its schedule, and goes on behind.
TEST_P(AveragingResumeTest, ARunGoesOnBitForBit) {
  const Resumed& one = GetParam();
  on_ranks(one.stages * one.tensor == 1 ? 3 : 4, [&](comm::World& world) {
    AveragingRun whole(world, one.config(), one.stages, one.tensor);
    const int64_t alone = one.stages == 1 && one.tensor == 1 && whole.engine().group().rank() == 1 ? 1 : 0;
    whole.not_finite_in = alone == 1 ? 5 : -1;
    whole.train(6);
    EXPECT_EQ(whole.engine().skipped_steps(), alone);
    whole.engine().save_checkpoint(folder_);
    const double loss = whole.train(5);
    AveragingRun resumed(world, one.config(), one.stages, one.tensor);
    resumed.train(2); // what a load has to forget
    resumed.engine().load_checkpoint(folder_);
    EXPECT_EQ(resumed.engine().skipped_steps(), alone);
    EXPECT_EQ(resumed.train(5), loss);
    EXPECT_EQ(resumed.engine().get_lr(), whole.engine().get_lr());
    EXPECT_EQ(resumed.made.optimizer->steps(), whole.made.optimizer->steps());
    for (size_t i = 0; i < whole.parameters().size(); ++i) {
      EXPECT_TRUE(whole.parameters()[i].equal(resumed.parameters()[i])) << "parameter " << i;
    }
    const double next = whole.train(1); // masters and states too
    EXPECT_EQ(resumed.train(1), next);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, AveragingResumeTest,
    testing::Values(
        Resumed{"sgd_nesterov", {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9}, false},
        Resumed{"adamw_mean", {.every = 3}},
        Resumed{"adamw_slowmo_average",
                {.every = 2, .outer = Outer::slowmo, .outer_momentum = 0.5, .states = States::average}},
        Resumed{"adamw_reset", {.every = 3, .states = States::reset}},
        Resumed{"adamw_nesterov_bf16",
                {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9},
                true,
                Type::bf16},
        Resumed{"adamw_fp16", {.every = 3}, true, Type::fp16},
        Resumed{"adamw_int8",
                {.every = 3, .outer = Outer::slowmo, .outer_momentum = 0.5},
                true,
                Type::fp32,
                optim::StateType::int8},
        Resumed{
            "adamw_int8_average", {.every = 3, .states = States::average}, true, Type::fp32, optim::StateType::int8},
        Resumed{"pipeline",
                {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9},
                true,
                Type::fp32,
                optim::StateType::fp32,
                2},
        Resumed{"tensor",
                {.every = 3, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9},
                true,
                Type::fp32,
                optim::StateType::fp32,
                1,
                2}),
    [](const auto& info) { return info.param.name; });

class AveragingCheckpointTest : public testing::Test, protected CheckpointFolder {};

TEST_F(AveragingCheckpointTest, BetweenTwoMeetingsASaveNamesTheNext) {
  on_ranks(2, [&](comm::World& world) {
    AveragingRun run(world, averaging_config({.every = 3}));
    run.engine().save_checkpoint(folder_, "first");
    run.train(4);
    EXPECT_THAT(test::error_of([&] { run.engine().save_checkpoint(folder_); }),
                testing::AllOf(HasSubstr("after step 4: the ranks are between two averaging steps"),
                               HasSubstr("the next is step 6")));
    run.train(2);
    run.engine().save_checkpoint(folder_);
  });
}

std::map<std::string, at::Tensor> states_of(AveragingRun& run) {
  std::map<std::string, at::Tensor> states;
  run.made.optimizer->for_each_state(
      [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t, const at::Tensor& values) {
        states[concat(state, '/', tensor.name)] = values.clone();
      },
      false);
  return states;
}

// More replicas: the first ones have what they saved, the others the mean of all. Fewer, or ranks that step together,
// are a part of that.
TEST_F(AveragingCheckpointTest, AnotherNumberOfReplicasGoesOn) {
  std::map<std::string, at::Tensor> saved[2];
  on_ranks(2, [&](comm::World& world) {
    AveragingRun run(world, averaging_config({.every = 3}, true));
    run.train(3);
    run.engine().save_checkpoint(folder_);
  });
  for (const int replicas : {3, 1}) {
    for (const bool together : {false, true}) {
      EXPECT_THAT(
          run_ranks(replicas,
                    [&](comm::World& world) {
                      const auto checkpoint = checkpoint::Checkpoint::open(folder_);
                      AveragingRun run(
                          world, averaging_config(together ? AveragingOptions{} : AveragingOptions{.every = 3}, true));
                      run.engine().load_checkpoint(folder_);
                      int64_t compared = 0;
                      for (const auto& [name, values] : states_of(run)) {
                        const at::Tensor first = checkpoint.read("replica0/" + name).flatten();
                        const at::Tensor second = checkpoint.read("replica1/" + name).flatten();
                        EXPECT_FALSE(first.equal(second)) << name;
                        const bool own = replicas > 1 && !together && world.rank() < 2;
                        const at::Tensor expected = !own ? (first + second) / 2 : world.rank() == 0 ? first : second;
                        EXPECT_TRUE(torch::allclose(values, expected, 1e-6, 0))
                            << name << " of rank " << world.rank() << ", together " << together;
                        ++compared;
                      }
                      EXPECT_GT(compared, 20);
                      EXPECT_TRUE(std::isfinite(run.train(3)));
                      EXPECT_EQ(run.engine().global_steps(), 6);
                    }),
          IsEmpty())
          << replicas;
    }
  }
}

// As after a warm-up in which gradients are summed in every step: the momentum begins anew.
// A run whose replicas have no states of their own begins with the mean of those that a checkpoint has: what it saves
// next is of all of them.
TEST_F(AveragingCheckpointTest, StatesThatAreAveragedFromNowOnBeginAsTheirMean) {
  on_ranks(2, [&](comm::World& world) {
    AveragingRun run(world, averaging_config({.every = 3}, true));
    run.train(3);
    run.engine().save_checkpoint(folder_);
  });
  for (const auto states : {AveragingOptions::States::average, AveragingOptions::States::reset}) {
    on_ranks(2, [&](comm::World& world) {
      const auto checkpoint = checkpoint::Checkpoint::open(folder_);
      AveragingRun run(world, averaging_config({.every = 3, .states = states}, true));
      run.engine().load_checkpoint(folder_);
      for (const auto& [name, values] : states_of(run)) {
        const at::Tensor mean =
            (checkpoint.read("replica0/" + name).flatten() + checkpoint.read("replica1/" + name).flatten()) / 2;
        EXPECT_TRUE(torch::allclose(values, mean, 1e-6, 0)) << name << " of rank " << world.rank();
      }
    });
  }
}

TEST_F(AveragingCheckpointTest, ContinuesARunOfRanksThatStepTogether) {
  const AveragingOptions options{.every = 4, .outer = Outer::nesterov, .outer_lr = 0.7, .outer_momentum = 0.9};
  on_ranks(2, [&](comm::World& world) {
    AveragingRun together(world, averaging_config({}, true));
    together.train(3); // a step at which the ranks would not meet
    together.engine().save_checkpoint(folder_);
    const auto expected = states_of(together);
    AveragingRun run(world, averaging_config(options, true));
    run.train(5); // momentum that a load has to forget
    run.engine().load_checkpoint(folder_);
    for (const auto& [name, values] : states_of(run)) {
      EXPECT_TRUE(values.equal(expected.at(name))) << name;
    }
    const auto start = run.copied_parameters();
    run.train(1); // 4: a meeting after a round of one step
    for (size_t i = 0; i < start.size(); ++i) {
      EXPECT_TRUE(start[i].equal(together.parameters()[i]));
    }
    AveragingRun mean(world, averaging_config({.every = 4}, true));
    mean.engine().load_checkpoint(folder_);
    mean.train(1);
    for (size_t i = 0; i < start.size(); ++i) { // with no momentum yet: 0.7 * (1 + 0.9) of the way
      const at::Tensor moved = (start[i] - mean.parameters()[i]) * (0.7 * 1.9);
      EXPECT_TRUE(torch::allclose(run.parameters()[i], start[i] - moved, 1e-5, 1e-6)) << "parameter " << i;
    }
    run.train(4);
    run.engine().save_checkpoint(folder_);
  });
}

} // namespace
} // namespace trireme::engine
