// The GradientSync seam carries ranks that step by themselves and agree every few steps, with a state of its own in
// checkpoints.
#include "small_run.h"

#include <trireme/base/error.h>

#include <trireme/models/gpt_layers.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

constexpr int kEvery = 3;

/// A client's own: averages parameters every kEvery steps, and knows neither masters nor states
/// (parallel::AveragingSync does).
class MeanSync : public parallel::GradientSync,
                 public parallel::StepExchange,
                 public parallel::SyncState,
                 public parallel::LocalSteps {
 public:
  explicit MeanSync(const comm::Group& group) : GradientSync(group) {}

  StepExchange& step_exchange() override { return *this; }
  SyncState& sync_state() override { return *this; }
  const LocalSteps* local_steps() const override { return this; }
  bool is_local() const override { return true; }
  bool ends_round() const override { return (steps_ + 1) % kEvery == 0; }
  int64_t steps_until_equal() const override { return (kEvery - steps_ % kEvery) % kEvery; }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override { buffers_ = buffers; }
  comm::Work gradients_ready(bucket::FlatParameters&, int64_t) override { return {}; }
  bool end_step(bool) override {
    const torch::NoGradGuard no_grad;
    const bool meet = ends_round();
    for (bucket::FlatParameters* const buffer : buffers_) {
      if (meet) {
        at::Tensor sum = buffer->flat_data().to(torch::kFloat32).clone();
        group().all_reduce(sum, comm::ReduceOp::sum, "parameters").wait();
        at::Tensor(buffer->flat_data()).copy_(sum / group().size());
      }
    }
    ++steps_;
    return meet;
  }
  void load_state(const nlohmann::json&, int64_t steps) override { steps_ = steps; }

 private:
  int64_t steps_ = 0;
  std::vector<bucket::FlatParameters*> buffers_;
};

struct MeanRun {
  models::Gpt model{small_gpt()};
  Initialized made;
  double weight = 1; // of the loss

  MeanRun(comm::World& world, const config::EngineConfig& config) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [this](const data::Batch& batch) { return model->loss(batch.input(), batch.target()) * weight; };
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    options.sync = {
        .make = [](const parallel::ReduceGroups& groups) { return std::make_unique<MeanSync>(groups.data()); }};
    made = initialize(world, options);
  }
  Engine& engine() { return *made.engine; }
  double train(int steps) {
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      loss = engine().train_batch().item<double>();
    }
    return loss;
  }
};

config::EngineConfig bf16_config() {
  config::EngineConfig config = small_config(48, 1, 0.5);
  config.precision.compute = precision::Type::bf16;
  return config;
}

class GradientSyncTest : public testing::TestWithParam<int> {};

// Masters of the ranks may differ in digits that their parameters do not have, and so may states: all of them are
// saved.
TEST_P(GradientSyncTest, RanksThatStepAloneAreSavedAndResumedBitForBit) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_gradient_sync_", ::getpid());
  on_ranks(GetParam(), [folder](comm::World& world) {
    MeanRun whole(world, bf16_config());
    whole.train(4);
    EXPECT_THAT(test::error_of([&] { whole.engine().save_checkpoint(folder); }), HasSubstr("the next is step 6"));
    whole.train(2);
    whole.engine().save_checkpoint(folder);
    const double loss = whole.train(5);
    MeanRun second(world, bf16_config());
    second.train(1);
    second.engine().load_checkpoint(folder);
    EXPECT_EQ(second.train(5), loss);
    for (size_t i = 0; i < whole.model->parameters().size(); ++i) {
      EXPECT_TRUE(whole.model->parameters()[i].equal(second.model->parameters()[i])) << "parameter " << i;
    }
  });
  fs::remove_all(folder);
}

// A step with gradients of zero leaves what the ranks have agreed on.
TEST_P(GradientSyncTest, MastersFollowWhatTheRanksAgreeOn) {
  on_ranks(GetParam(), [](comm::World& world) {
    config::EngineConfig config = bf16_config();
    config.optimizer = optim::OptimizerOptions{.rule = optim::SgdOptions{.lr = 0.2}};
    MeanRun run(world, config);
    run.train(kEvery);
    std::vector<at::Tensor> agreed;
    for (const at::Tensor& parameter : run.model->parameters()) {
      agreed.push_back(parameter.detach().clone());
    }
    run.weight = 0;
    run.train(1);
    for (size_t i = 0; i < agreed.size(); ++i) {
      EXPECT_TRUE(run.model->parameters()[i].equal(agreed[i])) << "parameter " << i;
    }
  });
}

/// Has a tensor for each parameter.
class CountingSync : public parallel::AllReduceSync, public parallel::StepExchange, public parallel::SyncState {
 public:
  explicit CountingSync(const parallel::ReduceGroups& groups) : AllReduceSync(groups, {}) {}
  StepExchange& step_exchange() override { return *this; }
  SyncState& sync_state() override { return *this; }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override {
    for (bucket::FlatParameters* const buffer : buffers) {
      steps_.emplace_back(buffer, torch::zeros({buffer->layout().numel()}));
    }
  }
  bool end_step(bool) override {
    for (auto& [buffer, steps] : steps_) {
      steps.add_(1);
    }
    return false;
  }
  void for_each_state(const nlohmann::json&, const Visit& visit) override {
    for (auto& [buffer, steps] : steps_) {
      for (const bucket::Slot& slot : buffer->layout().slots()) {
        visit("counted", buffer->layout().tensors()[slot.tensor], 0, steps.slice(0, slot.begin, slot.end));
      }
    }
  }

 private:
  std::vector<std::pair<bucket::FlatParameters*, at::Tensor>> steps_;
};

TEST(GradientSyncStateTest, ATiedParametersIsSavedOnceAndLoadedIntoEachCopy) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_tied_sync_", ::getpid());
  on_ranks(2, [folder](comm::World& world) {
    const auto make = [&](std::shared_ptr<CountingSync*> sync) {
      InitializeOptions options;
      pipeline::PipelineOptions pipeline;
      pipeline.stages = 2;
      options.pipeline =
          std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, pipeline);
      options.config = small_config(4, 2);
      options.sync = {.make = [sync](const parallel::ReduceGroups& groups) {
        auto made = std::make_unique<CountingSync>(groups);
        *sync = made.get();
        return made;
      }};
      return initialize(world, options);
    };
    const auto first = std::make_shared<CountingSync*>();
    const Initialized run = make(first);
    for (int step = 0; step < 3; ++step) {
      run.engine->train_batch([] { return Counting().get(std::vector<int64_t>{1, 2}); });
    }
    run.engine->save_checkpoint(folder);
    const auto second = std::make_shared<CountingSync*>();
    const Initialized resumed = make(second);
    resumed.engine->load_checkpoint(folder);
    (*second)->for_each_state(
        nullptr, [](const std::string&, const bucket::TensorInfo& tensor, int64_t, const at::Tensor& values) {
          EXPECT_TRUE(values.eq(3).all().item<bool>()) << tensor.name;
        });
  });
  fs::remove_all(folder);
}

TEST(GradientSyncErrorTest, ZeroHasItsOwn) {
  comm::World world = comm::World::connect();
  config::EngineConfig config = small_config(48, 1, 0.5);
  config.zero.stage = 1;
  EXPECT_THAT(test::error_of([&] { MeanRun(world, config); }), HasSubstr("ZeRO stage 1 with a sync of its own"));
  config.zero.stage = 0;
  config.step_in_backward = true;
  config.gradient_clipping = 0;
  EXPECT_THAT(test::error_of([&] { MeanRun(world, config); }), HasSubstr("step_in_backward with a sync of its own"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientSyncTest, testing::Values(1, 2, 3));

} // namespace
} // namespace trireme::engine
