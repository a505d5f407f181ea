// 1-bit Adam of models whose layers are split among tensor ranks: what these have whole stays the same on them.
#include "one_bit_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

using test::run_ranks;
using testing::IsEmpty;

std::vector<double> train_split(comm::World& world, int tensor, bool sequence_parallel, int steps, const config::EngineConfig& config = one_bit_config(10, 1, 1.0, 24)) {
  InitializeOptions options;
  options.mesh = mesh::training_mesh(world.group(), {.data = mesh::kRest, .tensor = tensor});
  options.sequence_parallel = sequence_parallel;
  models::ModelRanks ranks;
  ranks.tensor = {options.mesh->group(mesh::Axis::tensor), sequence_parallel};
  torch::manual_seed(7);
  models::Gpt model(small_gpt(), ranks);
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  options.config = config;
  options.training_data = std::make_shared<Counting>();
  options.shuffle = false;
  const Initialized made = initialize(world, options);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(made.engine->train_batch().item<double>());
  }
  expect_equal_on(made.engine->group(), *model, "of one tensor rank");
  const comm::Group& tensor_ranks = made.engine->tensor_group();
  for (const auto& item : model->named_parameters()) { // norms, positions and biases of sums
    if (item.key().find("ln_") != std::string::npos || item.key().find("wpe") != std::string::npos || item.key().ends_with("c_proj.bias")) {
      at::Tensor first = item.value().detach().clone();
      tensor_ranks.broadcast(first, 0).wait();
      EXPECT_TRUE(first.equal(item.value())) << item.key();
    }
  }
  return losses;
}

TEST(OneBitAdamTensorTest, SplitLayersLearnAsWholeOnesDo) {
  EXPECT_THAT(run_ranks(4,
                        [](comm::World& world) {
                          const std::vector<double> whole = train_split(world, 1, false, 40);
                          for (const bool sequence_parallel : {false, true}) {
                            const std::vector<double> split = train_split(world, 2, sequence_parallel, 40);
                            for (int step = 0; step < 40; ++step) {
                              EXPECT_NEAR(split[static_cast<size_t>(step)], whole[static_cast<size_t>(step)], step < 10 ? 1e-4 : 0.35) << "step " << step << ", sequence parallelism " << sequence_parallel;
                            }
                            EXPECT_LT(split.back(), split[10]);
                          }
                        }),
              IsEmpty());
}

// Gradients of one bit, then replicas that step by themselves: what tensor ranks have whole stays the same on them.
TEST(ZeroOneAdamTensorTest, SplitLayersLearnAsWholeOnesDo) {
  EXPECT_THAT(run_ranks(4,
                        [](comm::World& world) {
                          config::EngineConfig config = one_bit_config(10, 1, 1.0, 24);
                          optim::ZeroOneAdamOptions zero_one;
                          zero_one.lr = 0.01;
                          zero_one.beta2 = kBeta2;
                          zero_one.var_freeze_step = 20;
                          zero_one.var_update_scaler = 6;
                          zero_one.local_step_scaler = 5;
                          zero_one.local_step_clipper = 2;
                          config.optimizer->rule = zero_one;
                          const std::vector<double> whole = train_split(world, 1, false, 40, config), split = train_split(world, 2, false, 40, config);
                          for (int step = 0; step < 40; ++step) {
                            EXPECT_NEAR(split[static_cast<size_t>(step)], whole[static_cast<size_t>(step)], step < 6 ? 1e-4 : 0.35) << "step " << step;
                          }
                          EXPECT_LT(split.back(), split[6]);
                        }),
              IsEmpty());
}

} // namespace
} // namespace trireme::engine
