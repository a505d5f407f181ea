// `trireme train` on the simulated device, beside the same run on the CPU.
#include "sim_device.h"

#include <tests/support/folders.h>
#include <tests/support/run_ranks.h>
#include <tests/tools/small_training.h>

#include <trireme/base/file.h>
#include <trireme/engine/preemption.h>
#include <trireme/monitor/metrics.h>

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <set>
#include <thread>

namespace trireme::tools {
namespace {

class SimDeviceRunTest : public SmallTrainingTest {
 protected:
  // Losses of training and validation and the accuracy, of all steps.
  static std::vector<double> numbers(comm::World& world, const json& run, std::optional<at::Device> device,
                                     bool resume = false) {
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
  run["data"] = {{"type", "images"},
                 {"train", images_file("images", 7)},
                 {"train_labels", labels_file("labels", 3)},
                 {"validation", images_file("others", 5)},
                 {"validation_labels", labels_file("other_labels", 3)}};
  run["training"] = {{"steps", 3}, {"eval_every", 1}};
  test::on_ranks(2, [&](comm::World& world) {
    sim::start();
    const std::vector<double> cpu = numbers(world, run, std::nullopt);
    EXPECT_THAT(cpu, testing::SizeIs(9));
    EXPECT_GE(cpu.back(), 0);
    expect_near(numbers(world, run, sim::device()), cpu);
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

TEST_F(SimDeviceRunTest, ARunIsContinued) {
  json run = common();
  run["data"]["validation"] = tokens_file("others.bin", 7);
  run["training"] = {{"steps", 4}, {"eval_every", 2}, {"checkpoint_every", 2}};
  run["engine"]["zero_optimization"] = {{"stage", 3}};
  json half = run;
  half["training"]["steps"] = 2;
  test::on_ranks(2, [&](comm::World& world) {
    sim::start();
    const std::vector<double> cpu = numbers(world, run, std::nullopt);
    numbers(world, half, sim::device());
    expect_near(numbers(world, run, sim::device(), /*resume=*/true), cpu);
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

TEST_F(SimDeviceRunTest, LayersAndTokensAreSplit) {
  json run = common();
  run["data"]["validation"] = tokens_file("others.bin", 7);
  run["training"] = {{"steps", 3}, {"eval_every", 3}};
  const json splits[] = {
      {{"tensor", 2}, {"sequence_parallel", true}}, {{"context", 2}}, {{"context", 2}, {"context_kind", "ulysses"}}};
  test::on_ranks(2, [&](comm::World& world) {
    sim::start();
    for (const json& split : splits) {
      run["parallel"] = split;
      const std::vector<double> cpu = numbers(world, run, std::nullopt);
      expect_near(numbers(world, run, sim::device()), cpu);
    }
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

TEST_F(SimDeviceRunTest, ASignalToOneRankEndsAllAfterTheSameStep) {
  json run = common();
  run["training"] = {{"steps", 3000}};
  run["engine"]["zero_optimization"] = {{"stage", 2}};
  test::on_ranks(2, [&](comm::World& world) {
    sim::start();
    const engine::Preemption preemption;
    std::thread sender([&] {
      while (world.rank() == 1 &&
             (!fs::exists(out() / "metrics.jsonl") || monitor::read_metrics(out() / "metrics.jsonl").size() < 5)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      if (world.rank() == 1) {
        ::raise(SIGTERM);
      }
    });
    run_training(world, run, false, sim::device());
    sender.join();
    const int64_t last = monitor::read_metrics(out() / "metrics.jsonl").back().step;
    EXPECT_LT(last, 3000);
    EXPECT_TRUE(fs::exists(out() / "checkpoints" / concat("global_step", last)));
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

// An allocator keeps what is freed for the stream that it was taken on: with a stream for each module parameters of 13
// billion in files kept 20 GB of a GPU.
TEST_F(SimDeviceRunTest, AModelOfMoreLayersHasNoMoreStreams) {
  json run = common();
  run["training"] = {{"steps", 2}};
  run["engine"]["zero_optimization"] = {
      {"stage", 3},
      {"stage3_param_persistence_threshold", 0},
      {"offload_param", {{"device", "nvme"}, {"nvme_path", (out() / "files").string()}, {"max_in_cpu", 0}}}};
  test::on_ranks(1, [&](comm::World& world) {
    sim::start();
    const auto streams = [&](int layers) {
      run["model"]["layers"] = layers;
      sim::keep_spans(true);
      numbers(world, run, sim::device());
      std::set<int> used;
      for (const sim::Span& span : sim::spans()) {
        used.insert(span.stream);
      }
      return used.size();
    };
    const size_t of_few = streams(2);
    EXPECT_GE(of_few, 3u) << "nothing was copied beside computation";
    EXPECT_EQ(streams(10), of_few);
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

// The figures of docs/offload.md: TRIREME_LONG_TESTS=1, on the novels that ./quickstart brings.
TEST_F(SimDeviceRunTest, ADelayedUpdateConverges) {
  const bool novels = std::getenv("TRIREME_LONG_TESTS") != nullptr;
  const fs::path source = test::source_dir();
  if (novels && !fs::exists(source / "data/austen/train.txt")) {
    GTEST_SKIP() << "./quickstart brings the novels";
  }
  std::string text;
  for (const char* const page : {"configuration", "offload", "zero", "memory", "plan", "pipeline"}) {
    text += read_file(source / "docs" / concat(page, ".md"));
  }
  const size_t end = text.size() * 9 / 10;
  json run = common();
  run["model"] = {{"type", "gpt"}, {"layers", 2},           {"hidden", 64},
                  {"heads", 4},    {"sequence_length", 64}, {"vocab_size", 256}};
  run["data"] = {
      {"type", "text"},
      {"train", {novels ? (source / "data/austen/train.txt").string() : file("train.txt", text.substr(0, end))}},
      {"validation",
       {novels ? (source / "data/austen/validation.txt").string() : file("validation.txt", text.substr(end))}},
      {"tokenizer", "bytes"}};
  const int steps = novels ? 500 : 150;
  const auto losses = [&](comm::World& world, bool delayed, double lr) {
    run["training"] = {{"steps", steps}, {"seed", 1234}, {"eval_every", steps}, {"eval_batches", 50}};
    run["engine"] = {
        {"train_batch_size", 16},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", lr}, {"betas", {0.9, 0.95}}, {"weight_decay", 0.1}}}}},
        {"scheduler",
         {{"type", "WarmupCosineLR"},
          {"params", {{"total_num_steps", steps}, {"warmup_num_steps", steps / 10}, {"cos_min_ratio", 0.02}}}}},
        {"zero_optimization", {{"stage", 2}, {"offload_optimizer", {{"device", "cpu"}, {"delayed_update", delayed}}}}}};
    run_training(world, run, false, sim::device());
    const double loss = monitor::read_metrics(out() / "metrics.jsonl").back().val_loss.value_or(0);
    std::cout << "lr " << lr << ", " << steps << " steps" << (delayed ? ", delayed" : "") << ": validation loss "
              << loss << std::endl;
    return loss;
  };
  test::on_ranks(1,
                 [&](comm::World& world) {
                   sim::start();
                   for (const double lr : novels ? std::vector{2e-3, 1e-3, 5e-4} : std::vector{1e-3}) {
                     const double at_once = losses(world, false, lr);
                     const double delayed = losses(world, true, lr);
                     EXPECT_NE(at_once, delayed) << "nothing was delayed";
                     EXPECT_LT(at_once, 4) << "of log(256) = 5.5 at the start";
                     EXPECT_NEAR(delayed, at_once, 0.15 * at_once);
                   }
                   EXPECT_THAT(sim::problems(), testing::IsEmpty());
                 },
                 {.deadline = std::chrono::minutes(10)});
}

} // namespace
} // namespace trireme::tools
