// What a training step on a device reports: times of the device, waits of the host, the device's memory.
#include "sim_device.h"

#include <tests/engine/small_run.h>
#include <tests/support/run_ranks.h>
#include <tests/tools/small_training.h>

#include <trireme/base/log.h>
#include <trireme/device/host_scalars.h>
#include <trireme/device/host_waits.h>
#include <trireme/device/memory.h>
#include <trireme/device/phase_timer.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/monitor/metrics.h>

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr double kKernel = 1e-3; // seconds of the simulated device
constexpr int kNever = 1 << 30;

const int scalar = ::setenv("TRIREME_SIMD", "scalar", 1); // before anybody asks for kernels

void start(int devices = 1) {
  at::globalContext().setSDPUseFlash(false);
  sim::start(devices);
  sim::use_cpu_optimizer_kernels();
}

void in_a_child(const std::function<void()>& body) {
  EXPECT_THAT(test::run_processes(1,
                                  [&](int) {
                                    start(2);
                                    body();
                                  }),
              IsEmpty());
}

at::Tensor ones(int device = 0) {
  return torch::ones({4}, at::TensorOptions(sim::device(device)));
}

// A stretch of so many kernels.
void work(device::PhaseTimer& timer, int kernels) {
  const at::Tensor tensor = ones();
  timer.begin();
  for (int i = 0; i < kernels; ++i) {
    tensor.add(1);
  }
  timer.end();
}

void wait_for_the_device() {
  device::read_scalars({torch::zeros({}, at::TensorOptions(sim::device()).dtype(at::kDouble))});
}

TEST(SimDeviceMetricsTest, APhaseIsReadWhenTheHostHasWaitedForOtherReasons) {
  in_a_child([] {
    sim::set_polls(kNever); // nothing is seen before the host waits
    device::PhaseTimer timer(sim::device());
    work(timer, 2);
    work(timer, 3);
    timer.next_step();
    EXPECT_EQ(timer.seconds(), 0);
    wait_for_the_device();
    sim::reset_host_synchronisations();
    EXPECT_DOUBLE_EQ(timer.seconds(), 5 * kKernel);
    work(timer, 7);
    timer.next_step();
    EXPECT_DOUBLE_EQ(timer.seconds(), 5 * kKernel) << "the host has not waited since";
    work(timer, 4);
    wait_for_the_device();
    work(timer, 1);
    timer.next_step();
    EXPECT_DOUBLE_EQ(timer.seconds(), 7 * kKernel) << "of this step not all stretches are known to be done";
    EXPECT_EQ(sim::host_synchronisations(), 1) << "no time was waited for";
  });
}

TEST(SimDeviceMetricsTest, DroppedStretchesDoNotCount) {
  in_a_child([] {
    device::PhaseTimer timer(sim::device());
    work(timer, 5);
    timer.begin(); // and an exception
    timer.drop();
    work(timer, 3);
    timer.next_step();
    wait_for_the_device();
    EXPECT_DOUBLE_EQ(timer.seconds(), 3 * kKernel);
    timer.next_step(); // one without this phase
    EXPECT_EQ(timer.seconds(), 0);
  });
}

TEST(SimDeviceMetricsTest, MemoryIsThatOfTheDevice) {
  in_a_child([] {
    EXPECT_FALSE(device::memory_use(at::kCPU));
    EXPECT_FALSE(device::memory_use(at::kMeta)) << "its allocator keeps no count";
    const at::Tensor here = torch::empty({1 << 20}, at::TensorOptions(sim::device()));
    at::Tensor there = torch::empty({1 << 18}, at::TensorOptions(sim::device(1)));
    there.reset();
    EXPECT_EQ(device::memory_use(sim::device()).value().bytes, 4 << 20);
    EXPECT_EQ(device::memory_use(sim::device(1)).value().bytes, 0);
    EXPECT_EQ(device::memory_use(sim::device(1)).value().peak, 1 << 20);
    EXPECT_EQ(device::memory_use(at::Device(c10::kPrivateUse1)).value().bytes, 4 << 20) << "the current device";
  });
}

struct Case {
  std::string name;
  int zero_stage = 0;
  precision::Type type = precision::Type::fp32;
  double clipping = 1;
  int stages = 1;
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::one_f_one_b;
  bool step_in_backward = false;
};

InitializeOptions options_of(const Case& one, at::Device device) {
  InitializeOptions options;
  options.device = device;
  options.config = zero_config(one.zero_stage, one.stages > 1 ? 4 : 2, one.clipping);
  options.config.precision.compute = one.type;
  options.config.precision.loss_scale.initial_scale_power = 10;
  options.config.step_in_backward = one.step_in_backward;
  options.training_data = std::make_shared<Counting>();
  if (one.stages > 1) {
    pipeline::PipelineOptions stages;
    stages.stages = one.stages;
    stages.schedule = one.schedule;
    options.pipeline =
        std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt()), models::token_loss, stages);
    options.config.pipeline = {};
  } else {
    models::Gpt model(small_gpt());
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  }
  return options;
}

class SimDeviceMetrics : public testing::TestWithParam<Case> {};

// What the engine counts is what the checker counts, and reading the times adds nothing.
TEST_P(SimDeviceMetrics, WaitsAreThoseOfTheChecker) {
  const Case& one = GetParam();
  for (const int replicas : {1, 2}) {
    EXPECT_THAT(run_ranks(one.stages * replicas,
                          [&](comm::World& world) {
                            start();
                            const auto engine = initialize(world, options_of(one, sim::device())).engine;
                            for (int step = 0; step < 4; ++step) {
                              sim::reset_host_synchronisations();
                              engine->train_batch();
                              EXPECT_EQ(engine->host_syncs(), sim::host_synchronisations())
                                  << step << ' ' << testing::PrintToString(sim::host_synchronisation_names());
                              EXPECT_EQ(engine->host_syncs(), one.step_in_backward ? 1 : 0) << step;
                            }
                            EXPECT_THAT(sim::problems(), IsEmpty());
                          }),
                IsEmpty())
        << replicas;
  }
}

// Two steps of the same model are as many kernels.
TEST_P(SimDeviceMetrics, TimesAreTheDevices) {
  const Case& one = GetParam();
  on_ranks(one.stages, [&](comm::World& world) {
    start();
    const auto engine = initialize(world, options_of(one, sim::device())).engine;
    engine->train_batch();
    EXPECT_EQ(engine->times().optimizer, 0) << "the host has not waited for it";
    engine->train_batch();
    engine->train_batch();
    const StepTimes third = engine->times();
    engine->train_batch();
    const StepTimes fourth = engine->times();
    for (const auto& phase : {&StepTimes::forward, &StepTimes::backward}) {
      EXPECT_GT(third.*phase, 20 * kKernel);
      EXPECT_DOUBLE_EQ(fourth.*phase, third.*phase);
    }
    if (!one.step_in_backward) {
      EXPECT_GT(third.optimizer, 0.9 * kKernel);
      EXPECT_DOUBLE_EQ(fourth.optimizer, third.optimizer);
    }
  });
}

std::vector<Case> cases() {
  using pipeline::ScheduleKind;
  std::vector<Case> all;
  for (const int stage : {0, 1, 2, 3}) {
    all.push_back({.name = concat("zero", stage), .zero_stage = stage});
  }
  all.push_back({.name = "bf16_zero1", .zero_stage = 1, .type = precision::Type::bf16});
  all.push_back({.name = "fp16", .type = precision::Type::fp16});
  all.push_back({.name = "no_clipping", .clipping = 0});
  all.push_back({.name = "step_in_backward", .clipping = 0, .step_in_backward = true});
  all.push_back({.name = "one_f_one_b", .stages = 2});
  all.push_back({.name = "zero_bubble", .stages = 2, .schedule = ScheduleKind::zero_bubble});
  all.push_back({.name = "pipe_no_clipping", .clipping = 0, .stages = 2});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceMetrics, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// Events at both ends of the loss function see what `forward` says. The host's time is not in it, but in `total`.
TEST(SimDeviceMetricsTest, ForwardIsWhatTheDeviceDoesInTheLossFunction) {
  on_ranks(1, [](comm::World& world) {
    start();
    sim::set_polls(kNever);
    std::vector<std::pair<device::Event, device::Event>> marks;
    InitializeOptions options = options_of({}, sim::device());
    options.loss = [&, inner = options.loss](const data::Batch& batch) {
      device::Event begin(c10::kPrivateUse1, true), end(c10::kPrivateUse1, true);
      begin.record(device::current_stream(sim::device()));
      const LossAndLogits loss = inner(batch);
      end.record(device::current_stream(sim::device()));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      marks.emplace_back(std::move(begin), std::move(end));
      return loss;
    };
    const auto engine = initialize(world, options).engine;
    for (int step = 0; step < 3; ++step) {
      const auto before = std::exchange(marks, {}); // of the step before: of this one the host knows nothing yet
      engine->train_batch();
      ASSERT_EQ(marks.size(), 2U);
      double expected = 0;
      for (const auto& [begin, end] : before) {
        expected += end.seconds_since(begin);
      }
      EXPECT_DOUBLE_EQ(engine->times().forward, expected);
      EXPECT_GE(engine->times().total, 0.4);
    }
  });
}

// One rank goes on after a step that failed: its stretches are not in the next one.
TEST(SimDeviceMetricsTest, AFailedStepLeavesNoTimes) {
  on_ranks(1, [](comm::World& world) {
    start();
    int calls = 0;
    InitializeOptions options = options_of({}, sim::device());
    options.loss = [&, inner = options.loss](const data::Batch& batch) {
      const LossAndLogits loss = inner(batch);
      if (++calls == 8) {
        throw std::runtime_error("no");
      }
      return loss;
    };
    const auto engine = initialize(world, options).engine;
    engine->train_batch();
    engine->train_batch();
    engine->train_batch();
    const StepTimes before = engine->times();
    EXPECT_THROW(engine->train_batch(), std::runtime_error);
    engine->train_batch();
    EXPECT_DOUBLE_EQ(engine->times().forward, before.forward);
    EXPECT_DOUBLE_EQ(engine->times().backward, before.backward);
    EXPECT_EQ(engine->host_syncs(), 0);
  });
}

TEST(SimDeviceMetricsTest, OnTheCpuNothingOfADeviceIsReported) {
  on_ranks(1, [](comm::World& world) {
    const auto engine = initialize(world, options_of({}, at::kCPU)).engine;
    engine->train_batch();
    EXPECT_EQ(engine->host_syncs(), 0);
    EXPECT_FALSE(engine->device_memory());
    const StepTimes& times = engine->times();
    EXPECT_GT(times.optimizer, 0);
    EXPECT_GT(times.forward, 0);
    EXPECT_LE(times.forward + times.backward + times.optimizer, times.total);
  });
}

TEST(SimDeviceMetricsTest, BreakdownsNameTheDevice) {
  on_ranks(1, [](comm::World& world) {
    start();
    std::vector<std::string> lines;
    log::set_level(log::Level::info);
    log::set_sink([&](const std::string& line) { lines.push_back(line); });
    for (const at::Device device : {at::Device(at::kCPU), sim::device()}) {
      lines.clear();
      InitializeOptions options = options_of({}, device);
      options.config.memory_breakdown = options.config.wall_clock_breakdown = true;
      options.config.steps_per_print = 1;
      initialize(world, options).engine->train_batch();
      const auto told = AllOf(Contains(HasSubstr("; on sim:0 ")), Contains(HasSubstr("waits of the host 0")));
      const auto silent = AllOf(Not(Contains(HasSubstr("; on "))), Not(Contains(HasSubstr("waits of the host"))));
      if (device.is_cpu()) {
        EXPECT_THAT(lines, silent);
      } else {
        EXPECT_THAT(lines, told);
      }
    }
    log::set_sink(nullptr);
  });
}

} // namespace
} // namespace trireme::engine

namespace trireme::tools {
namespace {

class SimDeviceTraining : public SmallTrainingTest {};

// `trireme train`, as far as a rank does it.
TEST_F(SimDeviceTraining, MetricsAndReportNameTheDevice) {
  json run = common(); // its files are this process's
  run["training"]["steps"] = 4;
  test::on_ranks(2, [&](comm::World& world) {
    engine::start();
    std::vector<std::string> lines;
    log::set_sink([&](const std::string& line) { lines.push_back(line); });
    run_training(world, run, false, sim::device());
    log::set_sink(nullptr);
    at::Tensor peak = torch::tensor({sim::memory().peak}, torch::kInt64);
    world.group().all_reduce(peak, comm::ReduceOp::max, "peak").wait();
    if (world.rank() > 0) {
      return;
    }
    const auto steps = monitor::read_metrics(out() / "metrics.jsonl");
    ASSERT_EQ(steps.size(), 4U);
    for (const auto& step : steps) {
      EXPECT_EQ(step.host_syncs, 0);
      EXPECT_GT(step.device_peak_bytes.value_or(0), 0);
      EXPECT_GT(step.peak_rss_bytes.value_or(0), 0);
    }
    EXPECT_EQ(steps.back().device_peak_bytes, peak.item<int64_t>());
    EXPECT_GT(steps.back().device_peak_bytes, steps.front().device_peak_bytes) << "the first is from before training";
    const std::string report = read_file(out() / "report.html");
    for (const char* text : {"Peak device memory", "Host waits", "sim:0"}) {
      EXPECT_THAT(report, testing::HasSubstr(text));
    }
    EXPECT_THAT(lines, testing::Contains(testing::HasSubstr("device memory: at most ")));
    EXPECT_THAT(lines, testing::Contains(testing::HasSubstr("the host waited for the device 0.00 times a step")));
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

TEST_F(SimDeviceTraining, OnTheCpuTheyDoNot) {
  const json run = common();
  test::on_ranks(1, [&](comm::World& world) {
    run_training(world, run);
    const std::string written = read_file(out() / "metrics.jsonl") + read_file(out() / "report.html");
    EXPECT_THAT(written, testing::HasSubstr("peak_rss_bytes"));
    for (const char* text : {"device_peak_bytes", "host_syncs", "Peak device memory", "Host waits"}) {
      EXPECT_THAT(written, testing::Not(testing::HasSubstr(text)));
    }
  });
}

} // namespace
} // namespace trireme::tools
