// Partition "memory": what a stage holds depends on which stage it is.
#include <trireme/parallel/pipeline/module.h>

#include <tests/support/run_ranks.h>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Cuts layers of nothing but activations, all of one size.
void expect_bounds(int stages, int layers, int micro_batches, const PipelineOptions& schedule,
                   const std::vector<int64_t>& expected) {
  EXPECT_THAT(test::run_ranks(stages,
                              [&](comm::World& world) {
                                PipelineOptions options = schedule;
                                options.partition = "memory";
                                const Layer doubling([](const at::Tensor& x) { return x * 2; });
                                PipelineModule model(
                                    LayerList(std::vector<Layer>(static_cast<size_t>(layers), doubling)), nullptr,
                                    options);
                                model.set_sample_inputs({at::ones({4, 8})});
                                model.build(world.group(), micro_batches);
                                EXPECT_EQ(model.partition().bounds, expected);
                              }),
              IsEmpty())
      << stages << " stages, " << micro_batches << " micro-batches, " << schedule_name(schedule.schedule);
}

PipelineOptions with(ScheduleKind kind, int chunks = 1) {
  PipelineOptions options;
  options.schedule = kind;
  options.chunks = chunks;
  return options;
}

// 1F1B holds stages - s micro-batches on stage s: 2 layers twice and 4 layers once are the same memory.
TEST(MemoryPartitionTest, LaterStagesOf1F1bHoldLess) {
  expect_bounds(2, 6, 8, with(ScheduleKind::one_f_one_b), {0, 2, 6});
  expect_bounds(3, 11, 8, with(ScheduleKind::one_f_one_b), {0, 2, 5, 11});
}

TEST(MemoryPartitionTest, NoMoreThanThereAreMicroBatches) {
  expect_bounds(2, 6, 1, with(ScheduleKind::one_f_one_b), {0, 3, 6});
}

TEST(MemoryPartitionTest, OtherSchedulesHoldAsMuchOnEveryStage) {
  expect_bounds(2, 6, 8, with(ScheduleKind::gpipe), {0, 3, 6});
  expect_bounds(2, 6, 8, with(ScheduleKind::naive), {0, 3, 6});
}

TEST(MemoryPartitionTest, BoundsGivenByHandComeFirst) {
  PipelineOptions options = with(ScheduleKind::one_f_one_b);
  options.bounds = {0, 1, 6};
  expect_bounds(2, 6, 8, options, {0, 1, 6});
}

} // namespace
} // namespace trireme::pipeline
