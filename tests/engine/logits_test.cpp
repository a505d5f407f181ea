// What an evaluation gives beside the loss, and recomputation of a model in one piece.
#include "small_run.h"

#include <trireme/fused/fused.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/models/gpt_layers.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;
using testing::SizeIs;

data::Batch padded_batch() {
  data::Batch batch = Counting().get(std::vector<int64_t>{5, 6, 7, 5});
  batch.samples = 3;
  return batch;
}

// In one piece and one process, of the three samples.
LossAndLogits expected_of(models::Gpt model) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const data::Batch batch = Counting().get(std::vector<int64_t>{5, 6, 7});
  const at::Tensor logits = model->forward(batch.input());
  return {fused::cross_entropy(logits.flatten(0, 1), batch.target().flatten(), at::Reduction::Mean), {logits}};
}

TEST(LogitsTest, AreThoseOfTheLossFunction) {
  for (const int stage : {0, 3}) {
    on_ranks(2, [stage](comm::World& world) {
      const LossAndLogits expected = expected_of(models::Gpt(small_gpt()));
      models::Gpt model(small_gpt());
      InitializeOptions options;
      options.model = model.ptr();
      options.loss = [model](const data::Batch& batch) mutable -> LossAndLogits {
        const at::Tensor logits = model->forward(batch.input());
        return {fused::cross_entropy(logits.flatten(0, 1), batch.target().flatten(), at::Reduction::Mean), {logits}};
      };
      options.config = zero_config(stage);
      const auto made = initialize(world, options);
      const LossAndLogits found = made.engine->eval_batch_with_logits(padded_batch());
      ASSERT_THAT(found.logits, SizeIs(1));
      EXPECT_TRUE(found.logits[0].equal(expected.logits[0])) << "padding is left away";
      EXPECT_FALSE(found.logits[0].requires_grad());
      EXPECT_NEAR(found.loss.item<double>(), expected.loss.item<double>(), 1e-6);
      EXPECT_EQ(made.engine->eval_batch(padded_batch()).item<double>(), found.loss.item<double>());
      made.engine->train_batch([] { return Counting().get(std::vector<int64_t>(24, 1)); });

      SmallRun without(world, zero_config(stage));
      EXPECT_THAT(without.engine().eval_batch_with_logits(padded_batch()).logits, IsEmpty());
    });
  }
}

TEST(LogitsTest, OfAPipelineAreOnItsLastStage) {
  for (const int stages : {1, 2}) {
    for (const int zero_stage : {0, 3}) {
      if (stages > 1 && zero_stage == 3) {
        continue;
      }
      EXPECT_THAT(run_ranks(2,
                            [=](comm::World& world) {
                              const LossAndLogits expected = expected_of(models::Gpt(small_gpt()));
                              InitializeOptions options;
                              pipeline::PipelineOptions pipeline;
                              pipeline.stages = stages;
                              options.pipeline = std::make_shared<pipeline::PipelineModule>(
                                  models::gpt_layers(small_gpt()), models::token_loss, pipeline);
                              options.config = zero_config(zero_stage, 2);
                              const auto made = initialize(world, options);
                              const LossAndLogits found = made.engine->eval_batch_with_logits(padded_batch());
                              EXPECT_NEAR(found.loss.item<double>(), expected.loss.item<double>(), 1e-6);
                              const pipeline::Tensors& logits = found.logits;
                              ASSERT_THAT(logits, SizeIs(made.engine->pipe_group().rank() == stages - 1 ? 1 : 0));
                              for (const at::Tensor& tensor : logits) {
                                EXPECT_TRUE(tensor.allclose(expected.logits[0], 1e-5, 1e-6));
                              }
                            }),
                  IsEmpty())
          << stages << " stages, ZeRO stage " << zero_stage;
    }
  }
}

TEST(LogitsTest, ARankWithoutSamplesHasNone) {
  for (const int stages : {1, 2}) {
    EXPECT_THAT(run_ranks(2 * stages,
                          [=](comm::World& world) {
                            InitializeOptions options;
                            pipeline::PipelineOptions pipeline;
                            pipeline.stages = stages;
                            options.pipeline = std::make_shared<pipeline::PipelineModule>(
                                models::gpt_layers(small_gpt()), models::token_loss, pipeline);
                            options.config = zero_config(0, 2);
                            const auto made = initialize(world, options);
                            data::Batch batch = padded_batch();
                            const bool first = made.engine->group().rank() == 0;
                            batch.samples = first ? 0 : 2;
                            const auto logits = made.engine->eval_batch_with_logits(batch).logits;
                            const bool last_stage = made.engine->pipe_group().rank() == stages - 1;
                            ASSERT_THAT(logits, SizeIs(last_stage && !first ? 1 : 0));
                            if (!logits.empty()) {
                              EXPECT_EQ(logits[0].size(0), 2);
                            }
                          }),
                IsEmpty())
        << stages << " stages";
  }
}

TEST(LogitsTest, ALastLayerMayGiveItsLossAndLogits) {
  on_ranks(2, [](comm::World& world) {
    torch::manual_seed(1);
    InitializeOptions options;
    pipeline::PipelineOptions pipeline;
    pipeline.stages = 2;
    options.pipeline = std::make_shared<pipeline::PipelineModule>(
        pipeline::LayerList{pipeline::LayerSpec<torch::nn::Linear>(4, 4), pipeline::LayerSpec<torch::nn::Linear>(4, 4),
                            [](const at::Tensor& x) { return std::make_tuple(x.square().mean(), x); }},
        nullptr, pipeline);
    options.config = small_config(4, 2);
    const auto made = initialize(world, options);
    const at::Tensor x = torch::linspace(-1, 1, 8).reshape({2, 4});
    const data::Batch batch{{x}, {x}, 2};
    made.engine->train_batch([&] { return batch; });
    const LossAndLogits found = made.engine->eval_batch_with_logits(batch);
    ASSERT_THAT(found.logits, SizeIs(world.rank()));
    for (const at::Tensor& logits : found.logits) {
      EXPECT_NEAR(logits.square().mean().item<double>(), found.loss.item<double>(), 1e-7);
    }
  });
}

/// A model in one piece whose blocks may be computed again in backward.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(bool again) : again_(again) {
    torch::manual_seed(4);
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) {
      blocks->emplace_back(8, 8);
    }
  }
  at::Tensor loss(at::Tensor x) {
    for (auto& block : *blocks) {
      const auto forward = [&](const at::Tensor& input) {
        return torch::dropout(torch::tanh(block->forward(input)), 0.2, is_training());
      };
      x = again_ ? recompute::call(forward, x) : forward(x);
    }
    return x.square().mean();
  }
  zero::ShardedList<torch::nn::Linear> blocks;
  bool again_;
};
TORCH_MODULE(Stack);

TEST(RecomputeTest, AModelInOnePieceTrainsAsWithoutIt) {
  for (const int stage : {0, 2, 3}) {
    EXPECT_THAT(
        run_ranks(
            2,
            [stage](comm::World& world) {
              const auto losses = [&](bool again) {
                Stack model(again);
                EXPECT_EQ(model->named_parameters().front().key(), "blocks.0.weight") << "as in a ModuleList";
                InitializeOptions options;
                options.model = model.ptr();
                options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input()); };
                options.config = zero_config(stage);
                const auto made = initialize(world, options);
                torch::manual_seed(5 + world.rank());
                std::vector<double> found;
                for (int step = 0; step < 5; ++step) {
                  const at::Tensor x = torch::linspace(-1, 1, 24 * 8).reshape({24, 8}) * (1 + step + world.rank());
                  found.push_back(made.engine->train_batch([&] { return data::Batch{{x}, {x}, 24}; }).item<double>());
                }
                return found;
              };
              EXPECT_EQ(losses(true), losses(false));
            }),
        IsEmpty())
        << "ZeRO stage " << stage;
  }
}

} // namespace
} // namespace trireme::engine
