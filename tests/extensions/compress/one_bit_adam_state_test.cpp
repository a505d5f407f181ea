// What 1-bit Adam keeps: in checkpoints, over skipped steps, and of parameters that a step leaves out.
#include "one_bit_run.h"

#include <trireme/base/log.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

class OneBitAdamStateTest : public testing::TestWithParam<int> {
 protected:
  OneBitAdamStateTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_one_bit_state_", ::getpid())) {}
  ~OneBitAdamStateTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

void expect_resumed_equals_uninterrupted(comm::World& world, const config::EngineConfig& config, const fs::path& folder,
                                         int save_after) {
  torch::manual_seed(7);
  SmallRun whole(world, config, true);
  for (int step = 0; step < save_after; ++step) {
    whole.engine().train_batch();
  }
  whole.engine().save_checkpoint(folder);
  torch::manual_seed(8);
  SmallRun second(world, config, true);
  for (int step = 0; step < 6; ++step) { // errors of its own, which the load replaces
    second.engine().train_batch();
  }
  second.engine().load_checkpoint(folder);
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(second.engine().train_batch().item<double>(), whole.engine().train_batch().item<double>())
        << "saved after " << save_after << ", step " << step;
  }
  const auto ours = states_of(second);
  for (const auto& [name, values] : states_of(whole)) {
    EXPECT_TRUE(ours.at(name).equal(values)) << name << ", saved after " << save_after;
  }
}

TEST_P(OneBitAdamStateTest, ResumedIsUninterruptedBitForBit) {
  const fs::path folder = folder_;
  on_ranks(GetParam(), [folder](comm::World& world) {
    for (const int save_after : {2, 4, 7}) { // in the warm-up, at its end, after it
      expect_resumed_equals_uninterrupted(world, one_bit_config(4, 2, 1.0), folder, save_after);
    }
    for (const int stage : {0, 1}) {
      config::EngineConfig bf16 = one_bit_config(4, 1, 1.0, 48, stage);
      bf16.precision.compute = precision::Type::bf16;
      expect_resumed_equals_uninterrupted(world, bf16, folder, 7);
    }
    expect_resumed_equals_uninterrupted(world, one_bit_config(4, 2, 1.0, 48, 1), folder, 7);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneBitAdamStateTest, testing::Values(1, 2, 3));

TEST_F(OneBitAdamStateTest, WithAnotherNumberOfRanksTheErrorsBeginAtZero) {
  const fs::path folder = folder_;
  on_ranks(3, [folder](comm::World& world) {
    SmallRun run(world, one_bit_config(3));
    for (int step = 0; step < 6; ++step) {
      run.engine().train_batch();
    }
    run.engine().save_checkpoint(folder);
  });
  on_ranks(2, [folder](comm::World& world) {
    std::vector<std::string> lines;
    log::set_sink([&](const std::string& line) { lines.push_back(line); });
    SmallRun run(world, one_bit_config(3));
    run.engine().load_checkpoint(folder);
    log::set_sink(nullptr);
    if (world.rank() == 0) {
      EXPECT_THAT(lines,
                  testing::Contains(HasSubstr(
                      "the checkpoint is from 3 data ranks, this run has 2; the errors of compression begin at zero")));
    }
    const auto before = states_of(run);
    run.engine().train_batch();
    for (const auto& [name, values] : states_of(run)) { // the warm-up is over
      EXPECT_EQ(values.equal(before.at(name)), name.starts_with("exp_avg_sq/")) << name;
    }
    expect_equal_on(world.group(), *run.model, "after a step");
  });
}

TEST_F(OneBitAdamStateTest, ContinuesACheckpointOfAdamWAndTheOtherWayRound) {
  const fs::path folder = folder_;
  on_ranks(2, [folder](comm::World& world) {
    SmallRun adam(world, small_config(48, 1, 0));
    for (int step = 0; step < 5; ++step) {
      adam.engine().train_batch();
    }
    adam.engine().save_checkpoint(folder);
    SmallRun run(world, one_bit_config(7));
    run.engine().load_checkpoint(folder);
    std::vector<std::map<std::string, at::Tensor>> states;
    for (int step = 6; step <= 8; ++step) {
      run.engine().train_batch();
      states.push_back(states_of(run));
    }
    for (const auto& [name, values] : states[1]) {
      EXPECT_FALSE(values.equal(states[0].at(name))) << name; // step 7 is Adam's
      EXPECT_EQ(values.equal(states[2].at(name)), name.starts_with("exp_avg_sq/")) << name;
    }
    run.engine().save_checkpoint(folder);
    adam.engine().load_checkpoint(folder);
    adam.engine().train_batch();
    for (const auto& [name, values] : states_of(adam)) {
      EXPECT_FALSE(values.equal(states[2].at(name))) << name;
    }
  });
}

data::Batch the_batch(const comm::World& world) {
  return Counting().get(std::vector<int64_t>{world.rank(), world.rank() + 10, world.rank() + 20});
}

// A gradient of NaN on one rank, under a finite loss: a step of which nothing stays, neither in moments nor in errors.
TEST(OneBitAdamSkipTest, AStepThatIsSkippedLeavesNoTrace) {
  on_ranks(2, [](comm::World& world) {
    for (const auto& [fp16, stage] : {std::pair(false, 0), {true, 0}, {false, 1}}) {
      config::EngineConfig config = one_bit_config(3, 1, 0, 6, stage);
      if (fp16) {
        config.precision.compute = precision::Type::fp16;
        config.precision.loss_scale.initial_scale_power = 8;
      }
      const auto train = [&](bool fails) {
        torch::manual_seed(7);
        SmallRun run(world, config);
        for (int step = 0; step < 8; ++step) {
          const at::Tensor loss = run.engine().forward(the_batch(world));
          if (fails && step == 5) {
            run.engine().backward(loss);
            run.engine().step();
            const at::Tensor second = run.engine().forward(the_batch(world));
            const at::Tensor weight = run.model->parameters().back();
            run.engine().backward(
                world.rank() == 1 ? second + (at::sqrt((weight * 0).sum()) * 0).to(second.scalar_type()) : second);
            run.engine().step();
            EXPECT_EQ(run.engine().skipped_steps(), 1);
          } else {
            run.engine().backward(loss);
            run.engine().step();
          }
        }
        return fingerprint(*run.model);
      };
      EXPECT_TRUE(train(true).equal(train(false))) << "fp16 " << fp16 << ", ZeRO stage " << stage;
    }
  });
}

/// Two weights; a batch says how much of each is used.
struct TwoWeightsImpl : torch::nn::Module {
  TwoWeightsImpl() {
    a = register_parameter("a", torch::linspace(-1, 1, 40));
    b = register_parameter("b", torch::linspace(-1, 1, 40));
  }
  at::Tensor loss(const data::Batch& batch) {
    const at::Tensor input = batch.input();
    at::Tensor sum = (a * input).square().sum();
    if (batch.target().item<double>() != 0) {
      sum = sum + (b * input).square().sum();
    }
    return sum;
  }
  at::Tensor a, b;
};
TORCH_MODULE(TwoWeights);

// Elements 0 to 9 have no gradient while the second moments move; b has none in the fifth step.
void expect_unused_values_kept(comm::World& world, int zero_stage) {
  TwoWeights model;
  InitializeOptions options;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch); };
  options.config = one_bit_config(3, 1, 0, 2, zero_stage);
  std::get<optim::OneBitAdamOptions>(options.config.optimizer->rule).weight_decay = 0;
  const Initialized made = initialize(world, options);
  const auto step = [&](bool all, bool uses_b) {
    at::Tensor input = torch::linspace(0.5, 1, 40) + world.rank();
    if (!all) {
      input.slice(0, 0, 10).zero_();
    }
    made.engine->train_batch([&] { return data::Batch{{input}, {torch::tensor(uses_b ? 1.0 : 0.0)}, 1}; });
  };
  for (int i = 0; i < 4; ++i) {
    step(false, true);
  }
  const at::Tensor a = model->a.detach().clone(), b = model->b.detach().clone();
  const auto moment_of_b = [&] {
    at::Tensor found = torch::zeros({0}); // this rank may have nothing of it
    made.optimizer->for_each_state(
        [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t, const at::Tensor& values) {
          found = state == "exp_avg" && tensor.name == "b" ? values.clone() : found;
        },
        false);
    return found;
  };
  const at::Tensor moment = moment_of_b();
  step(true, false);
  EXPECT_TRUE(model->b.equal(b));
  EXPECT_TRUE(moment_of_b().equal(moment));
  EXPECT_TRUE(model->a.slice(0, 0, 10).equal(a.slice(0, 0, 10)));
  EXPECT_TRUE(model->a.slice(0, 10).ne(a.slice(0, 10)).all().item<bool>());
  step(true, true);
  EXPECT_TRUE(model->b.slice(0, 10).ne(b.slice(0, 10)).all().item<bool>());
  EXPECT_TRUE(model->b.slice(0, 0, 10).equal(b.slice(0, 0, 10)));
  EXPECT_LT(model->a.abs().max().item<double>(), 2);
  expect_equal_on(world.group(), *model, "after a step that leaves one out");
}

TEST(OneBitAdamSkipTest, WhatHadNoGradientKeepsItsValues) {
  for (const int stage : {0, 1}) {
    EXPECT_THAT(run_ranks(2, [stage](comm::World& world) { expect_unused_values_kept(world, stage); }), IsEmpty())
        << "ZeRO stage " << stage;
  }
}

} // namespace
} // namespace trireme::engine
