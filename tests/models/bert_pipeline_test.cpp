#include <trireme/engine/initialize.h>
#include <trireme/models/bert_layers.h>

#include <tests/support/batch_of_step.h>
#include <tests/support/gaps.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

namespace trireme::models {
namespace {

constexpr int kSteps = 6;
constexpr int64_t kBatch = 8;
constexpr int64_t kMicroBatches = 4;
constexpr int64_t kLength = 10;

BertOptions small() {
  BertOptions options;
  options.layers = 4;
  options.hidden = 16;
  options.heads = 2;
  options.sequence_length = kLength;
  options.vocab_size = 31;
  return options;
}

// Nothing but libtorch: one process, the whole batch at once.
std::vector<double> plain_losses() {
  pipeline::PipelineModule model(bert_layers(small()), masked_lm_loss);
  model.build();
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
  const test::Gaps data(kLength);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const data::Batch batch = test::batch_of_step(data, step, kBatch);
    optimizer.zero_grad();
    const at::Tensor loss = masked_lm_loss(model.forward(batch.inputs), batch.targets);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(BertPipelineTest, TwoStagesThatPassTheMaskOnEqualOneProcess) {
  test::on_ranks(2, [](comm::World& world) {
    pipeline::PipelineOptions pipeline;
    pipeline.stages = 2;
    engine::InitializeOptions options;
    options.pipeline = std::make_shared<pipeline::PipelineModule>(bert_layers(small()), masked_lm_loss, pipeline);
    options.config.batch.train = kBatch;
    options.config.batch.accumulation = kMicroBatches;
    options.config.gradient_clipping = 0;
    options.config.optimizer.emplace();
    std::get<optim::AdamOptions>(options.config.optimizer->rule).lr = 0.01;
    std::get<optim::AdamOptions>(options.config.optimizer->rule).weight_decay = 0.01; // torch's default
    options.training_data = std::make_shared<test::Gaps>(kLength);
    options.shuffle = false;
    const engine::Initialized made = engine::initialize(world, options);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      losses.push_back(made.engine->train_batch().item<double>());
    }
    if (world.rank() == 0) {
      EXPECT_THAT(losses, testing::Pointwise(testing::DoubleNear(1e-5), plain_losses()));
      EXPECT_LT(losses.back(), losses.front()) << "the test must train";
    }
  });
}

} // namespace
} // namespace trireme::models
