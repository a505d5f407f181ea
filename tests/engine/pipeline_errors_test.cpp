// Pipelines of layers that are not a GPT: what is refused, and how failures end.
#include "free_run.h"

#include <trireme/base/error.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <vector>

namespace trireme::engine {
namespace {

namespace nn = torch::nn;
using pipeline::LayerList;
using pipeline::LayerSpec;
using pipeline::PipelineOptions;
using test::run_ranks;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

TEST(PipelineErrorsTest, AStageThatFailsEndsAllRanksWithItsMessage) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run_ranks(3, [](comm::World& world) {
    int calls = 0;
    const LayerList layers{LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 4),
                           [&calls](const at::Tensor& x) {
                             if (++calls == 3) {
                               throw Error("my layer", "the sensor is unplugged");
                             }
                             return x;
                           },
                           LayerSpec<nn::Linear>(4, 1)};
    PipelineOptions options;
    options.bounds = {0, 1, 3, 4};
    FreeRun run(world, layers, 3, 6, options);
    losses(run, [](int m) { return row_batch(m); });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ASSERT_THAT(errors, SizeIs(3));
  EXPECT_THAT(errors, Each(HasSubstr("the sensor is unplugged")));
}

TEST(PipelineErrorsTest, MismatchedShapesNameTheLayerAndBothStages) {
  const auto errors = run_ranks(2, [](comm::World& world) {
    PipelineOptions options;
    options.bounds = {0, 1, 2};
    FreeRun run(world, LayerList{LayerSpec<nn::Linear>(4, 6), LayerSpec<nn::Linear>(8, 1)}, 2, 2, options);
    losses(run, [](int m) { return row_batch(m); });
  });
  EXPECT_THAT(errors, Contains(AllOf(HasSubstr("layer 1 (Linear, stage 1 of 2)"), HasSubstr("[3, 6]"),
                                     HasSubstr("layer 0 (Linear, stage 0)"))));
}

TEST(PipelineErrorsTest, InputsAndTargetsOfDifferentSamplesAreAnError) {
  const auto errors = run_ranks(2, [](comm::World& world) {
    FreeRun run(world, LayerList{LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 1)}, 2, 2);
    losses(run, [&](int m) {
      data::Batch batch = row_batch(m);
      batch.fingerprint = 1 + m + (m == 3 ? world.rank() : 0);
      return batch;
    });
  });
  EXPECT_THAT(errors, Contains(AllOf(HasSubstr("micro-batch 1"), HasSubstr("other samples"))));
}

TEST(PipelineErrorsTest, RanksThatStagesDoNotDivideAreRefusedWithTheChoices) {
  const auto errors = run_ranks(3, [](comm::World& world) {
    FreeRun(world, LayerList{LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 1)}, 2, 2);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("2"), HasSubstr("3"))));
  EXPECT_THAT(errors, SizeIs(3));
}

TEST(PipelineErrorsTest, ASchedulesMistakeIsFoundBeforeTheFirstStep) {
  const auto errors = run_ranks(2, [](comm::World& world) {
    PipelineOptions options;
    options.custom_schedule = [](const pipeline::ScheduleShape& shape, int stage) {
      pipeline::Program program = make_program(pipeline::ScheduleKind::gpipe, shape, stage);
      std::erase_if(program, [&](const pipeline::Instruction& i) {
        return stage == 1 && i.op == pipeline::Op::send_grad && i.micro_batch == 1;
      });
      return program;
    };
    FreeRun run(world, LayerList{LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 1)}, 2, 2, options);
    losses(run, [](int m) { return row_batch(m); });
  });
  EXPECT_THAT(errors, SizeIs(2));
  EXPECT_THAT(errors, Each(HasSubstr("stage")));
}

TEST(PipelineErrorsTest, TheExplicitLoopIsRefusedForSeveralStages) {
  const auto errors = run_ranks(2, [](comm::World& world) {
    FreeRun run(world, LayerList{LayerSpec<nn::Linear>(4, 4), LayerSpec<nn::Linear>(4, 1)}, 2, 2);
    run.engine->forward(row_batch(0));
  });
  EXPECT_THAT(errors, Each(HasSubstr("train_batch()")));
  EXPECT_THAT(errors, SizeIs(2));
}

} // namespace
} // namespace trireme::engine
