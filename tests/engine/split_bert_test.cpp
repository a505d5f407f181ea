// A BERT whose layers are split among ranks, with masks and gaps to guess: losses and gradient norms of one process and plain libtorch.
#include "split_run.h"

#include <trireme/models/bert_layers.h>

#include <tests/support/gaps.h>

namespace trireme::engine {
namespace {

using models::BertOptions;
using pipeline::PipelineModule;
using Kind = pipeline::ScheduleKind;
using testing::IsEmpty;

constexpr int kSteps = 20;
constexpr int64_t kBatch = 8;
constexpr int64_t kLength = 12;

BertOptions small_bert() {
  BertOptions options;
  options.layers = 3;
  options.hidden = 16;
  options.heads = 4;
  options.sequence_length = kLength;
  options.vocab_size = 31;
  return options;
}

struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
};

Curve of_one_process() {
  PipelineModule model(models::bert_layers(small_bert()), models::masked_lm_loss);
  model.build();
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
  const test::Gaps data(kLength);
  Curve curve;
  int64_t position = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < kBatch; ++i) {
      indices.push_back(position++ % data.size());
    }
    const data::Batch batch = data.get(indices);
    optimizer.zero_grad();
    const at::Tensor loss = models::masked_lm_loss(model.forward(batch.inputs), batch.targets);
    loss.backward();
    curve.norms.push_back(torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0));
    optimizer.step();
    curve.losses.push_back(loss.item<double>());
  }
  return curve;
}

void expect_curve_of_one_process(const SplitLayout& layout) {
  EXPECT_THAT(test::run_ranks(layout.ranks(),
                              [&](comm::World& world) {
                                const Curve expected = of_one_process();
                                InitializeOptions options;
                                options.mesh = layout.make_mesh(world);
                                options.sequence_parallel = layout.sequence_parallel;
                                const models::ModelRanks ranks = layout.model_ranks(*options.mesh);
                                options.pipeline = std::make_shared<PipelineModule>(models::bert_layers(small_bert(), ranks), models::bert_loss(small_bert(), ranks), layout.pipeline_options());
                                options.config.batch.train = kBatch;
                                options.config.batch.accumulation = layout.accumulation;
                                options.config.gradient_clipping = 1;
                                options.config.zero.stage = layout.zero_stage;
                                options.config.zero.param_persistence_threshold = 0;
                                options.config.optimizer.emplace();
                                std::get<optim::AdamOptions>(options.config.optimizer->rule).lr = 0.01;
                                std::get<optim::AdamOptions>(options.config.optimizer->rule).weight_decay = 0.01; // torch's default
                                options.training_data = std::make_shared<test::Gaps>(kLength);
                                options.shuffle = false;
                                const Initialized made = initialize(world, options);
                                for (int step = 0; step < kSteps; ++step) {
                                  const double loss = made.engine->train_batch().item<double>();
                                  ASSERT_NEAR(loss, expected.losses[step], 1e-5 * expected.losses[step]) << "step " << step;
                                  ASSERT_NEAR(made.engine->get_global_grad_norm().value(), expected.norms[step], 1e-5 * expected.norms[step]) << "step " << step;
                                }
                              }),
              IsEmpty())
      << layout.describe();
}

TEST(SplitBertTest, TensorRanks) {
  expect_curve_of_one_process({.tensor = 2});
  expect_curve_of_one_process({.tensor = 4, .sequence_parallel = true});
}

TEST(SplitBertTest, TokensOfEachSample) {
  expect_curve_of_one_process({.context = 2});
  expect_curve_of_one_process({.context = 3});
  expect_curve_of_one_process({.context = 4, .context_kind = context::Kind::ulysses});
  expect_curve_of_one_process({.data = 2, .context = 2, .zero_stage = 2});
  expect_curve_of_one_process({.pipe = 2, .context = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2});
}

TEST(SplitBertTest, WithReplicasPipelinesAndZero) {
  expect_curve_of_one_process({.data = 2, .tensor = 2, .zero_stage = 2});
  expect_curve_of_one_process({.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3});
}

TEST(SplitBertTest, Pipelines) {
  expect_curve_of_one_process({.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2});
  expect_curve_of_one_process({.pipe = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 1, .accumulation = 2});
  expect_curve_of_one_process({.pipe = 3, .tensor = 2, .accumulation = 4, .schedule = Kind::gpipe});
  expect_curve_of_one_process({.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 4, .schedule = Kind::interleaved, .chunks = 2});
  expect_curve_of_one_process({.pipe = 2, .context = 2, .accumulation = 4, .schedule = Kind::interleaved, .chunks = 2});
  expect_curve_of_one_process({.pipe = 2, .tensor = 2, .accumulation = 4, .schedule = Kind::zero_bubble});
  expect_curve_of_one_process({.pipe = 2, .context = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 4, .schedule = Kind::zero_bubble, .context_kind = context::Kind::ulysses});
  expect_curve_of_one_process({.pipe = 2, .data = 2, .tensor = 2, .zero_stage = 3, .accumulation = 2});
  expect_curve_of_one_process({.pipe = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3, .accumulation = 4, .schedule = Kind::zero_bubble});
  expect_curve_of_one_process({.pipe = 2, .data = 2, .context = 2, .zero_stage = 2, .accumulation = 4, .schedule = Kind::interleaved, .chunks = 2});
}

} // namespace
} // namespace trireme::engine
