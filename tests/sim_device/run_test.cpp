// `trireme train` on the simulated device, beside the same run on the CPU.
#include "sim_device.h"

#include <tests/support/run_ranks.h>
#include <tests/tools/small_training.h>

#include <trireme/monitor/metrics.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

class SimDeviceRunTest : public SmallTrainingTest {
 protected:
  // Losses of training and validation and the accuracy, of all steps.
  static std::vector<double> numbers(comm::World& world, const json& run, std::optional<at::Device> device, bool resume = false) {
    run_training(world, run, resume, device);
    std::vector<double> seen;
    for (const auto& step : monitor::read_metrics(out() / "metrics.jsonl")) {
      seen.insert(seen.end(), {step.loss.value_or(-1), step.val_loss.value_or(-1), step.val_accuracy.value_or(-1)});
    }
    world.group().barrier("read").wait(); // before the next run
    return seen;
  }
  static void expect_near(const std::vector<double>& device, const std::vector<double>& cpu) {
    ASSERT_EQ(device.size(), cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_NEAR(device[i], cpu[i], 1e-4 * std::abs(cpu[i])) << i;
    }
  }
};

TEST_F(SimDeviceRunTest, AClassifierCountsWhatIsRight) {
  json run = common();
  run["model"] = {{"type", "cnn"}, {"side", 8}, {"width", 4}};
  run["data"] = {{"type", "images"}, {"train", images_file("images", 7)}, {"train_labels", labels_file("labels", 3)},
                 {"validation", images_file("others", 5)}, {"validation_labels", labels_file("other_labels", 3)}};
  run["training"] = {{"steps", 3}, {"eval_every", 1}};
  EXPECT_THAT(test::run_ranks(2,
                              [&](comm::World& world) {
                                sim::start();
                                const std::vector<double> cpu = numbers(world, run, std::nullopt);
                                EXPECT_THAT(cpu, testing::SizeIs(9));
                                EXPECT_GE(cpu.back(), 0);
                                expect_near(numbers(world, run, sim::device()), cpu);
                                EXPECT_THAT(sim::problems(), testing::IsEmpty());
                              }),
              testing::IsEmpty());
}

TEST_F(SimDeviceRunTest, ARunIsContinued) {
  json run = common();
  run["data"]["validation"] = tokens_file("others.bin", 7);
  run["training"] = {{"steps", 4}, {"eval_every", 2}, {"checkpoint_every", 2}};
  run["engine"]["zero_optimization"] = {{"stage", 3}};
  json half = run;
  half["training"]["steps"] = 2;
  EXPECT_THAT(test::run_ranks(2,
                              [&](comm::World& world) {
                                sim::start();
                                const std::vector<double> cpu = numbers(world, run, std::nullopt);
                                numbers(world, half, sim::device());
                                expect_near(numbers(world, run, sim::device(), /*resume=*/true), cpu);
                                EXPECT_THAT(sim::problems(), testing::IsEmpty());
                              }),
              testing::IsEmpty());
}

TEST_F(SimDeviceRunTest, LayersAndTokensAreSplit) {
  json run = common();
  run["data"]["validation"] = tokens_file("others.bin", 7);
  run["training"] = {{"steps", 3}, {"eval_every", 3}};
  const json splits[] = {{{"tensor", 2}, {"sequence_parallel", true}}, {{"context", 2}}, {{"context", 2}, {"context_kind", "ulysses"}}};
  EXPECT_THAT(test::run_ranks(2,
                              [&](comm::World& world) {
                                sim::start();
                                for (const json& split : splits) {
                                  run["parallel"] = split;
                                  const std::vector<double> cpu = numbers(world, run, std::nullopt);
                                  expect_near(numbers(world, run, sim::device()), cpu);
                                }
                                EXPECT_THAT(sim::problems(), testing::IsEmpty());
                              }),
              testing::IsEmpty());
}

} // namespace
} // namespace trireme::tools
