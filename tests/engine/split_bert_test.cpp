// A BERT whose layers are split among ranks, with masks and gaps to guess: losses and gradient norms of one process and plain libtorch.
#include <trireme/engine/initialize.h>
#include <trireme/models/bert_layers.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

namespace trireme::engine {
namespace {

using mesh::Axis;
using models::BertOptions;
using pipeline::PipelineModule;
using testing::IsEmpty;

constexpr int kSteps = 20;
constexpr int64_t kBatch = 8;
constexpr int64_t kLength = 12;
constexpr int64_t kMaskToken = 30;

BertOptions small_bert() {
  BertOptions options;
  options.layers = 3;
  options.hidden = 16;
  options.heads = 4;
  options.sequence_length = kLength;
  options.vocab_size = 31;
  return options;
}

/// Sequences of different lengths that count upwards; in each half of a sequence one token is to be guessed.
class Gaps : public data::Dataset {
 public:
  int64_t size() const override {
    return 64;
  }
  data::Batch get(std::span<const int64_t> indices) const override {
    std::vector<at::Tensor> tokens, masks, targets;
    for (const int64_t i : indices) {
      const at::Tensor sample = (torch::arange(kLength) * (1 + i % 3) + i * 7) % kMaskToken;
      const at::Tensor there = torch::arange(kLength) < kLength - i % 5;
      at::Tensor asked = torch::zeros({kLength}, torch::kBool);
      asked[1 + i % 2] = true;
      asked[6] = true;
      tokens.push_back(sample.masked_fill(asked, kMaskToken).masked_fill(~there, 0));
      masks.push_back(there);
      targets.push_back(sample.masked_fill(~asked, models::kIgnoredTarget));
    }
    return {{torch::stack(tokens), torch::stack(masks)}, {torch::stack(targets)}, static_cast<int64_t>(indices.size())};
  }
  std::string describe() const override {
    return "gaps";
  }
};

struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
};

Curve of_one_process() {
  PipelineModule model(models::bert_layers(small_bert()), models::masked_lm_loss);
  model.build();
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
  const Gaps data;
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

struct Layout {
  int pipe = 1;
  int data = 1;
  int context = 1;
  int tensor = 1;
  bool sequence_parallel = false;
  int zero_stage = 0;
  context::Kind context_kind = context::Kind::ring;
};

void expect_losses_of_one_process(const Layout& layout) {
  EXPECT_THAT(test::run_ranks(layout.pipe * layout.data * layout.context * layout.tensor,
                              [&](comm::World& world) {
                                const Curve expected = of_one_process();
                                InitializeOptions options;
                                options.mesh = mesh::training_mesh(world.group(), {.pipe = layout.pipe, .data = layout.data, .context = layout.context, .tensor = layout.tensor});
                                options.sequence_parallel = layout.sequence_parallel;
                                models::ModelRanks ranks;
                                ranks.tensor = {options.mesh->group(Axis::tensor), layout.sequence_parallel};
                                ranks.context = options.mesh->group(Axis::context);
                                ranks.context_kind = layout.context_kind;
                                pipeline::PipelineOptions pipeline;
                                pipeline.stages = layout.pipe;
                                options.pipeline = std::make_shared<PipelineModule>(models::bert_layers(small_bert(), ranks), models::bert_loss(small_bert(), ranks), pipeline);
                                options.config.batch.train = kBatch;
                                options.config.batch.accumulation = layout.pipe > 1 ? 2 : 1;
                                options.config.gradient_clipping = 1;
                                options.config.zero.stage = layout.zero_stage;
                                options.config.zero.param_persistence_threshold = 0;
                                options.config.optimizer.emplace();
                                std::get<optim::AdamOptions>(options.config.optimizer->rule).lr = 0.01;
                                std::get<optim::AdamOptions>(options.config.optimizer->rule).weight_decay = 0.01; // torch's default
                                options.training_data = std::make_shared<Gaps>();
                                options.shuffle = false;
                                const Initialized made = initialize(world, options);
                                for (int step = 0; step < kSteps; ++step) {
                                  const double loss = made.engine->train_batch().item<double>();
                                  ASSERT_NEAR(loss, expected.losses[step], 1e-5 * expected.losses[step]) << "step " << step;
                                  ASSERT_NEAR(made.engine->get_global_grad_norm().value(), expected.norms[step], 1e-5 * expected.norms[step]) << "step " << step;
                                }
                              }),
              IsEmpty())
      << "pipe " << layout.pipe << ", data " << layout.data << ", context " << layout.context << ", tensor " << layout.tensor << (layout.sequence_parallel ? " with sequence parallelism" : "") << ", ZeRO "
      << layout.zero_stage;
}

TEST(SplitBertTest, TensorRanks) {
  expect_losses_of_one_process({.tensor = 2});
  expect_losses_of_one_process({.tensor = 4, .sequence_parallel = true});
}

TEST(SplitBertTest, TokensOfEachSample) {
  expect_losses_of_one_process({.context = 2});
  expect_losses_of_one_process({.context = 3});
  expect_losses_of_one_process({.context = 4, .context_kind = context::Kind::ulysses});
  expect_losses_of_one_process({.data = 2, .context = 2, .zero_stage = 2});
  expect_losses_of_one_process({.pipe = 2, .context = 2, .tensor = 2, .sequence_parallel = true});
}

TEST(SplitBertTest, WithReplicasPipelinesAndZero) {
  expect_losses_of_one_process({.data = 2, .tensor = 2, .zero_stage = 2});
  expect_losses_of_one_process({.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3});
  expect_losses_of_one_process({.pipe = 2, .tensor = 2, .sequence_parallel = true});
  expect_losses_of_one_process({.pipe = 2, .data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 1});
}

} // namespace
} // namespace trireme::engine
