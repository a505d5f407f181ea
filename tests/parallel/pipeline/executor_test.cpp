#include <trireme/parallel/pipeline/executor.h>

#include <tests/support/run_ranks.h>

#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::pipeline {
namespace {

using test::on_ranks;
using test::run_ranks;

constexpr int kMicroBatches = 6;

struct Ran {
  double loss_sum = 0;
  int peak_in_flight = 0;
  int lasts = 0; ///< backwards announced as the last of their chunk
  int loaded = 0;
  std::vector<std::string> calls; ///< in the order of the callbacks at the end
};

Ran train(comm::World& world, ScheduleKind kind, int chunks = 1) {
  PipelineOptions options;
  options.stages = world.size();
  options.schedule = kind;
  options.chunks = chunks;
  options.seed_layers = true;
  std::vector<Layer> layers;
  for (int i = 0; i < world.size() * chunks; ++i) {
    layers.push_back(LayerSpec<torch::nn::Linear>(4, 4));
  }
  PipelineModule model(
      layers, [](const Tensors& outputs, const Tensors& targets) { return at::mse_loss(outputs[0], targets[0]); },
      options);
  model.build(world.group());
  Executor executor(model, world.group());
  Ran ran;
  const auto next = [&] {
    const at::Tensor x = torch::full({2, 4}, 0.1 * ++ran.loaded);
    return data::Batch{{x}, {x}, 2};
  };
  executor.train(kMicroBatches, 0, [](at::ScalarType) { return 1.0 / kMicroBatches; }, next,
                 {[&](int, bool last) { ran.lasts += last ? 1 : 0; }, [&] { ran.calls.push_back("tied"); },
                  [&] { ran.calls.push_back("reduce"); }});
  ran.loss_sum = executor.loss_sum().defined() ? executor.loss_sum().item<double>() : 0;
  ran.peak_in_flight = executor.peak_in_flight();
  EXPECT_EQ(executor.loads_inputs(), world.rank() == 0);
  EXPECT_EQ(executor.loads_targets(), world.rank() == world.size() - 1);
  return ran;
}

TEST(ExecutorTest, HoldsAsManyMicroBatchesAsTheScheduleSays) {
  on_ranks(3, [](comm::World& world) {
    const int below = world.size() - world.rank(); // stages from here to the last
    EXPECT_EQ(train(world, ScheduleKind::naive).peak_in_flight, 1);
    EXPECT_EQ(train(world, ScheduleKind::gpipe).peak_in_flight, kMicroBatches);
    EXPECT_EQ(train(world, ScheduleKind::one_f_one_b).peak_in_flight, below);
    EXPECT_LE(train(world, ScheduleKind::zero_bubble).peak_in_flight, world.size());
  });
}

TEST(ExecutorTest, LoadsAtTheEndsOnlyAndAnnouncesTheLastBackward) {
  on_ranks(3, [](comm::World& world) {
    for (const auto kind : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zero_bubble}) {
      const int chunks = kind == ScheduleKind::interleaved ? 2 : 1;
      const Ran ran = train(world, kind, chunks);
      EXPECT_EQ(ran.loaded, world.rank() == 1 ? 0 : kMicroBatches);
      EXPECT_EQ(ran.loss_sum > 0, world.rank() == 2);
      EXPECT_EQ(ran.lasts, chunks) << "when nothing is left of the other micro-batches";
      EXPECT_THAT(ran.calls, testing::ElementsAre("tied", "reduce"));
    }
  });
}

TEST(ExecutorTest, EvaluationShowsTheLastStageEveryOutputInOrder) {
  on_ranks(3, [](comm::World& world) {
    PipelineOptions options;
    options.stages = 3;
    const LayerList layers{[](const at::Tensor& x) { return x + 1; }, [](const at::Tensor& x) { return x * 2; },
                           [](const at::Tensor& x) { return x - 3; }};
    PipelineModule model(layers, nullptr, options);
    model.build(world.group());
    Executor executor(model, world.group());
    int loaded = 0;
    std::vector<double> seen;
    executor.evaluate(
        5, [&] { return data::Batch{{torch::full({1}, loaded++)}, {}, 1}; },
        [&](const Tensors& outputs, const data::Batch&) { seen.push_back(outputs[0].item<double>()); });
    EXPECT_EQ(seen, world.rank() == 2 ? (std::vector<double>{-1, 1, 3, 5, 7}) : std::vector<double>());
  });
}

} // namespace
} // namespace trireme::pipeline
