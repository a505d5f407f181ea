// The end of a step on a device: the optimizer is launched before the host knows loss and norm, and a step that is to
// be skipped changes nothing.
#include "sim_device.h"

#include <tests/engine/small_run.h>
#include <tests/support/run_ranks.h>

#include <trireme/engine/step_outcome.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/models/small_step.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <filesystem>
#include <limits>

namespace trireme::engine {
namespace {

using precision::Type;
using testing::IsEmpty;

struct Optimizer {
  std::string name;
  optim::OptimizerOptions options;
  int zero_stage = 0;
  Type type = Type::fp32;
  int stages = 1;
};

std::vector<Optimizer> optimizers() {
  const optim::AdamOptions adam{.lr = 0.01, .weight_decay = 0.1};
  return {
      {"adamw", {.rule = adam}},
      {"adamw_zero1_bf16", {.rule = adam}, 1, Type::bf16},
      {"adamw_zero2_fp16", {.rule = adam}, 2, Type::fp16},
      {"adamw_zero3", {.rule = adam}, 3},
      {"states_bf16", {.rule = adam, .state_type = optim::StateType::bf16}, 1},
      {"states_int8", {.rule = adam, .state_type = optim::StateType::int8}},
      {"sgd", {.rule = optim::SgdOptions{.lr = 0.05, .momentum = 0.9}}, 2},
      {"lion", {.rule = optim::LionOptions{}}},
      {"adagrad", {.rule = optim::AdagradOptions{}}},
      {"rmsprop", {.rule = optim::RmspropOptions{}}},
      {"lamb", {.rule = optim::LambOptions{}}, 1},
      {"pipeline", {.rule = adam}, 1, Type::fp32, 2},
  };
}

struct Ended {
  std::vector<double> numbers; // loss, norm, lr, loss scale of each step, and whether it was taken
  std::vector<at::Tensor> weights;
};

// On the last rank the first step has a loss that is not finite, the fourth gradients. Each step has its learning rate,
// which a skipped one leaves to the next. What came of the steps is read at the end, so that the host never waits.
// With a `folder`, the engine saves after the fourth step and loads that.
Ended train(comm::World& world, const Optimizer& one, at::Device device, const std::filesystem::path& folder = {}) {
  InitializeOptions options;
  options.device = device;
  options.lr = [](int64_t step) { return 0.01 / static_cast<double>(step); };
  options.config = zero_config(one.zero_stage, /*accumulation=*/2, /*clipping=*/1);
  options.config.precision.compute = one.type;
  if (one.type == Type::fp16) {
    options.config.precision.loss_scale.initial_scale_power = 10;
  }
  options.config.optimizer = one.options;
  options.training_data = std::make_shared<Counting>();
  int calls = 0;
  at::Tensor bias;
  const auto spoil = [&](const at::Tensor& loss) {
    const int step = calls++ / 2;
    if (world.rank() < world.size() - 1 || (step != 0 && step != 3)) {
      return loss;
    }
    if (step == 0) {
      return loss * std::numeric_limits<float>::infinity();
    }
    const at::Tensor x = bias.defined() ? bias.to(at::kFloat) : loss;
    return loss + (x - x.detach()).sum() * 3e38 * 10; // adds 0, and infinity to the gradient
  };
  if (one.stages > 1) {
    options.pipeline = std::make_shared<pipeline::PipelineModule>(
        models::gpt_layers(small_gpt()),
        [&](const auto& output, const auto& target) { return spoil(models::token_loss(output, target)); },
        pipeline::PipelineOptions{.stages = one.stages});
    options.config.pipeline = {};
  } else {
    models::Gpt model(small_gpt());
    options.model = model.ptr();
    bias = model->named_parameters()["transformer.ln_f.bias"];
    options.loss = [&, model](const data::Batch& batch) mutable {
      return spoil(model->loss(batch.input(), batch.target()));
    };
  }
  const auto engine = initialize(world, options).engine;
  Ended ended;
  std::vector<std::shared_ptr<const StepOutcome>> outcomes;
  for (int step = 0; step < 6; ++step) {
    engine->train_batch();
    outcomes.push_back(engine->outcome());
    if (step == 3 && !folder.empty()) {
      engine->save_checkpoint(folder, "fourth");
      engine->load_checkpoint(folder, "fourth");
    }
  }
  EXPECT_EQ(engine->skipped_steps(), 2);
  for (const auto& outcome : outcomes) {
    for (const double number : {outcome->loss(), outcome->grad_norm().value_or(-1), outcome->lr(),
                                outcome->loss_scale(), outcome->taken() ? 1.0 : 0.0}) {
      ended.numbers.push_back(std::isfinite(number) ? number : -7);
    }
  }
  const std::vector<at::Tensor> parameters = engine->module().parameters();
  const auto whole = engine->gather_parameters(parameters);
  for (const at::Tensor& parameter : parameters) {
    ended.weights.push_back(parameter.detach().cpu().clone());
  }
  return ended;
}

class SimDeviceStepTest : public testing::TestWithParam<Optimizer> {};

TEST_P(SimDeviceStepTest, SkippedStepsLeaveWhatTheCpuLeaves) {
  const Optimizer& one = GetParam();
  test::on_ranks(2, [&](comm::World& world) {
    at::globalContext().setSDPUseFlash(false);
    sim::start();
    sim::set_polls(20); // nothing of a step is known before the host waits
    sim::use_cpu_optimizer_kernels();
    const Ended cpu = train(world, one, at::kCPU);
    const Ended device = train(world, one, sim::device());
    EXPECT_EQ(device.numbers, cpu.numbers);
    ASSERT_EQ(device.weights.size(), cpu.weights.size());
    for (size_t i = 0; i < cpu.weights.size(); ++i) {
      EXPECT_TRUE(device.weights[i].equal(cpu.weights[i])) << "parameter " << i;
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceStepTest, testing::ValuesIn(optimizers()),
                         [](const auto& info) { return info.param.name; });

// The skipped fourth step was not known when the save began.
TEST(SimDeviceStep, ASaveCountsTheStepBeforeIt) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / concat("trireme_sim_device_step_", ::getpid());
  const Optimizer one{
      .name = "", .options = {.rule = optim::AdamOptions{.lr = 0.01}}, .zero_stage = 2, .type = Type::fp16};
  test::on_ranks(2, [&](comm::World& world) {
    at::globalContext().setSDPUseFlash(false);
    sim::start();
    sim::set_polls(20);
    sim::use_cpu_optimizer_kernels();
    const Ended cpu = train(world, one, at::kCPU);
    const Ended device = train(world, one, sim::device(), folder);
    EXPECT_EQ(device.numbers, cpu.numbers);
    for (size_t i = 0; i < cpu.weights.size(); ++i) {
      EXPECT_TRUE(device.weights[i].equal(cpu.weights[i])) << "parameter " << i;
    }
  });
  std::filesystem::remove_all(folder);
}

// "bf16": {"enabled": "auto"}.
TEST(SimDeviceStep, BothTypesAreTimedOnTheDevice) {
  test::on_ranks(1, [&](comm::World&) {
    sim::start();
    const models::StepSeconds step = models::time_small_gpt(sim::device());
    EXPECT_GT(step.fp32, 0);
    EXPECT_GT(step.bf16, 0);
    EXPECT_GT(sim::memory().peak, 10'000'000) << "parameters of both";
  });
}

TEST(SimDeviceStep, TheOptimizerIsLaunchedBeforeTheHostWaits) {
  test::on_ranks(2, [&](comm::World& world) {
    sim::start();
    sim::use_cpu_optimizer_kernels();
    models::Gpt model(small_gpt());
    InitializeOptions options;
    options.device = sim::device();
    options.config = zero_config(1, /*accumulation=*/2, /*clipping=*/1);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
    options.training_data = std::make_shared<Counting>();
    const auto engine = initialize(world, options).engine;
    engine->train_batch();
    sim::reset_host_synchronisations();
    engine->train_batch();
    EXPECT_EQ(sim::host_synchronisations_before_optimizer(), 0);
    EXPECT_EQ(sim::host_synchronisations(), 0);
    sim::set_polls(20);
    const at::Tensor loss = engine->train_batch();
    EXPECT_FALSE(loss.is_cpu()) << "it is not known yet";
    EXPECT_EQ(loss.item<double>(), engine->loss());
  });
}

} // namespace
} // namespace trireme::engine
