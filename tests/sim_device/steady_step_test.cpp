// What a step costs a device beside its arithmetic once the run is steady: waits of the host, blocks of memory that are
// not reused, copies between host and device, and launches. docs/devices.md has the table.
#include "child.h"

#include <tests/engine/small_run.h>

#include <trireme/comm/recorder.h>

#include <cstdio>

namespace trireme::engine {
namespace {

using precision::Type;

constexpr const char* kStepSums = "loss, gradient norm, stop and unused parameters";

struct SteadyCase {
  std::string name;
  int zero_stage = 0;
  Type type = Type::fp32;
  // Budgets.
  int64_t layer_launches = 54;
  int64_t other_launches = 71; // embeddings, loss, end of the step
};

// Of one step.
struct StepCost {
  int64_t waits = 0;
  int64_t fresh = 0; // blocks of memory that the allocator did not have
  int64_t to_device = 0;
  int64_t to_host = 0;
  int64_t launches = 0;
};

InitializeOptions steady_options(const SteadyCase& one, int64_t layers) {
  InitializeOptions options;
  options.device = sim::device();
  options.config = zero_config(one.zero_stage, /*accumulation=*/1, /*clipping=*/1);
  options.config.data_parallel.bucket_bytes = options.config.data_parallel.first_bucket_bytes = 1 << 20;
  options.config.precision.compute = one.type;
  options.config.precision.loss_scale.initial_scale_power = 10;
  options.training_data = std::make_shared<Counting>();
  models::GptOptions shape = small_gpt();
  shape.layers = layers;
  models::Gpt model(shape);
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  return options;
}

void start_steady() {
  sim::start();
  sim::use_cpu_optimizer_kernels();
  sim::use_cpu_row_kernels();
}

// The most of three steps, after some that fill the allocator.
StepCost cost_of_a_step(comm::World& world, const SteadyCase& one, int64_t layers) {
  const auto engine = initialize(world, steady_options(one, layers)).engine;
  for (int step = 0; step < 4; ++step) {
    engine->train_batch();
  }
  StepCost most;
  for (int step = 0; step < 3; ++step) {
    sim::reset_host_synchronisations();
    const sim::Copied copied = sim::copied();
    const int64_t fresh = sim::memory().fresh, launches = sim::launches(0);
    engine->train_batch();
    most.waits = std::max(most.waits, sim::host_synchronisations());
    most.fresh = std::max(most.fresh, sim::memory().fresh - fresh);
    most.to_device = std::max(most.to_device, sim::copied().copies_to_device - copied.copies_to_device);
    most.to_host = std::max(most.to_host, sim::copied().copies_to_host - copied.copies_to_host);
    most.launches = std::max(most.launches, sim::launches(0) - launches);
  }
  EXPECT_EQ(engine->skipped_steps(), 0);
  return most;
}

class SimDeviceSteadyStep : public testing::TestWithParam<SteadyCase> {};

TEST_P(SimDeviceSteadyStep, StaysWithinItsBudget) {
  const SteadyCase& one = GetParam();
  test::on_ranks(1, [&](comm::World& world) {
    start_steady();
    const StepCost two = cost_of_a_step(world, one, 2), four = cost_of_a_step(world, one, 4);
    const int64_t of_a_layer = (four.launches - two.launches) / 2, rest = two.launches - 2 * of_a_layer;
    std::printf("%s: waits %ld, fresh blocks %ld, copies %ld + %ld, launches a layer %ld, others %ld\n",
                one.name.c_str(), two.waits, two.fresh, two.to_device, two.to_host, of_a_layer, rest);
    EXPECT_EQ(two.waits, 0) << testing::PrintToString(sim::host_synchronisation_names());
    EXPECT_EQ(two.fresh, 0);
    EXPECT_LE(two.to_device, 2) << "the batch: tokens and targets";
    EXPECT_LE(two.to_host, 1) << "loss and norm";
    EXPECT_LE(of_a_layer, one.layer_launches);
    EXPECT_LE(rest, one.other_launches);
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

std::vector<SteadyCase> steady_cases() {
  std::vector<SteadyCase> all;
  for (const int stage : {0, 1, 2}) {
    const std::string name = stage == 0 ? "ddp" : concat("zero", stage);
    all.push_back({concat(name, "_fp32"), stage});
    all.push_back({concat(name, "_bf16"), stage, Type::bf16, 63});
    all.push_back({concat(name, "_fp16"), stage, Type::fp16, 69, 93});
  }
  return all;
}

// All that ranks agree on in a step goes along with its loss and norm, on the device.
TEST_P(SimDeviceSteadyStep, HostsOfTwoRanksSendNothing) {
  const SteadyCase& one = GetParam();
  test::on_ranks(2, [&](comm::World& world) {
    start_steady();
    InitializeOptions options = steady_options(one, 2);
    const auto engine = initialize(world, options).engine;
    for (int step = 0; step < 4; ++step) {
      engine->train_batch();
    }
    for (int step = 0; step < 3; ++step) {
      const uint64_t before = comm::Recorder::process().records().size();
      sim::reset_host_synchronisations();
      engine->train_batch();
      const std::vector<comm::Record> records = comm::Recorder::process().records();
      ASSERT_LT(records.size(), comm::Recorder::kCapacity);
      int sums = 0;
      for (size_t i = before; i < records.size(); ++i) {
        const std::string& what = records[i].what;
        sums += what == kStepSums ? 1 : 0;
        EXPECT_THAT(what, testing::AnyOf(kStepSums, testing::StartsWith("gradients, bucket"),
                                         testing::StartsWith("parameters")));
      }
      EXPECT_EQ(sums, 1);
    }
    EXPECT_EQ(engine->skipped_steps(), 0);
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

// A device so slow that no event is ready when it is asked for: the host has to wait, but only where it is a step
// ahead. It needs time of its own before each step, and the device never has to wait for it.
TEST_P(SimDeviceSteadyStep, KeepsASlowDeviceBusy) {
  const SteadyCase& one = GetParam();
  test::on_ranks(1, [&](comm::World& world) {
    start_steady();
    sim::set_polls(1'000'000'000);
    const auto engine = initialize(world, steady_options(one, 2)).engine;
    for (int step = 0; step < 3; ++step) {
      engine->train_batch();
    }
    sim::keep_spans(true);
    for (int step = 0; step < 3; ++step) {
      const int64_t before = sim::launches(0);
      sim::reset_host_synchronisations();
      sim::host_works(50); // of more than 200 milliseconds that the device needs
      engine->train_batch();
      ASSERT_EQ(sim::host_synchronisations(), 1);
      EXPECT_GT(sim::launched_behind_host_synchronisations().front(), (sim::launches(0) - before) * 3 / 4);
    }
    double end = -1;
    for (const sim::Span& span : sim::spans()) {
      if (span.stream == 0) {
        EXPECT_TRUE(end < 0 || span.begin == end) << span.kernel << " begins " << span.begin - end << " ms late";
        end = span.end;
      }
    }
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceSteadyStep, testing::ValuesIn(steady_cases()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace trireme::engine
