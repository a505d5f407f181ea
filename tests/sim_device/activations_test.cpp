// Activations that leave a device and come back: the same bits, no race, no wait of the host, and no copy between the
// kernels that compute.
#include "engine_case.h"

#include <cstdlib>

namespace trireme::engine {
namespace {

using activations::Way;
using testing::IsEmpty;

activations::Options wanted(Way way) {
  return {.policy = way, .nvme_path = scratch("activations").string(), .least_bytes = 0};
}

struct DeviceRun {
  Seen seen;
  double forward = 0; // seconds of the device's clock
  double backward = 0;
  int64_t peak = 0;
  int64_t in = 0;
  std::vector<Way> ways;
  std::vector<int64_t> waits; // of the host, in each step
};

DeviceRun run(comm::World& world, const Case& one, at::Device device,
              const activations::Options& options_of_activations, int layers = 2) {
  InitializeOptions options = options_of(one, device);
  if (layers != 2) {
    models::GptOptions shape = small_gpt(one.dropout);
    shape.layers = layers;
    models::Gpt model(shape);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
  }
  options.config.activations = options_of_activations;
  const auto engine = initialize(world, options).engine;
  DeviceRun ended;
  for (int i = 0; i < kSteps; ++i) {
    sim::reset_host_synchronisations();
    engine->train_batch();
    ended.waits.push_back(device.is_cpu() ? 0 : sim::host_synchronisations());
    add_step(ended.seen, *engine);
    if (engine->activations() != nullptr) {
      ended.peak = engine->activations()->peak_bytes();
    }
  }
  ended.forward = engine->times().forward;
  ended.backward = engine->times().backward;
  add_weights(ended.seen, *engine);
  if (engine->activations() != nullptr) {
    ended.in = engine->activations()->bytes_in();
    ended.ways = engine->activations()->ways();
  }
  return ended;
}

class SimDeviceActivationsTest : public testing::TestWithParam<Case> {};

TEST_P(SimDeviceActivationsTest, EveryWayGivesTheBitsOfTheCpu) {
  const Case& one = GetParam();
  test::on_ranks(2, [&](comm::World& world) {
    start();
    const DeviceRun cpu = run(world, one, at::kCPU, {});
    for (const Way way : activations::kWays) {
      SCOPED_TRACE(activations::name_of(way));
      const DeviceRun device = run(world, one, sim::device(), wanted(way));
      expect_same(device.seen, cpu.seen);
      EXPECT_EQ(device.in > 0, activations::moves(way));
      if (!activations::to_nvme(way)) { // the host has to see that a copy is there before it writes it
        EXPECT_EQ(device.waits, std::vector<int64_t>(kSteps, 0));
      }
      EXPECT_THAT(sim::problems(), IsEmpty());
      sim::clear_problems();
    }
  });
  std::filesystem::remove_all(scratch("activations"));
}

INSTANTIATE_TEST_SUITE_P(
    All, SimDeviceActivationsTest,
    testing::Values(Case{.name = "zero0"}, Case{.name = "zero3_bf16", .zero_stage = 3, .type = precision::Type::bf16},
                    Case{.name = "pipeline", .stages = 2},
                    Case{.name = "pipeline_interval", .zero_stage = 1, .stages = 2, .recompute = 2}),
    [](const auto& info) { return info.param.name; });

TEST(SimDeviceActivations, MovesAreNotOnTheStreamThatComputesAndFreeTheDevice) {
  test::on_ranks(1, [&](comm::World& world) {
    start();
    const Case one{.name = "eight layers", .accumulation = 1};
    const DeviceRun keep = run(world, one, sim::device(), wanted(Way::keep), 8);
    const DeviceRun host = run(world, one, sim::device(), wanted(Way::host), 8);
    EXPECT_GT(keep.forward, 0);
    EXPECT_EQ(host.forward, keep.forward) << "on the clock of the stream that computes";
    EXPECT_EQ(host.backward, keep.backward);
    EXPECT_LT(host.peak, keep.peak * 0.6) << "of 8 layers one leaves and one is there, or one is there and one comes";
    const DeviceRun recompute = run(world, one, sim::device(), wanted(Way::recompute), 8);
    const DeviceRun both = run(world, one, sim::device(), wanted(Way::recompute_host), 8);
    EXPECT_EQ(both.backward, recompute.backward);
    EXPECT_LT(both.peak, recompute.peak);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
  std::filesystem::remove_all(scratch("activations"));
}

// From the first copy that leaves to the last that returns the stream that computes never waits: for the host, or for a
// copy. What a layer saves leaves while the next one computes, and returns while the layer behind does.
TEST(SimDeviceActivations, CopiesLieBesideTheComputation) {
  test::on_ranks(1, [&](comm::World& world) {
    start();
    InitializeOptions options = options_of({.name = "eight layers", .accumulation = 1}, sim::device());
    models::GptOptions shape = small_gpt();
    shape.layers = 8;
    models::Gpt model(shape);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input(), batch.target()); };
    options.config.activations = wanted(Way::host);
    const auto engine = initialize(world, options).engine;
    engine->train_batch();
    engine->train_batch();
    sim::keep_spans(true);
    engine->train_batch();
    const std::vector<sim::Span> all = sim::spans();
    const auto moves = [](const char* kernel) {
      return [kernel](const sim::Span& span) { return span.stream != 0 && span.kernel == kernel; };
    };
    const auto first = std::find_if(all.begin(), all.end(), moves("copy to the host"));
    const auto last = std::find_if(all.rbegin(), all.rend(), moves("copy to the device"));
    ASSERT_TRUE(first != all.end() && last != all.rend());
    EXPECT_GT(std::count_if(all.begin(), all.end(), moves("copy to the device")), 7 * 5)
        << "of seven layers, which save some tensors each";
    const sim::Span* before = nullptr;
    for (const sim::Span& span : all) {
      if (span.stream == 0 && span.begin >= first->begin && span.begin <= last->end) {
        EXPECT_TRUE(before == nullptr || span.begin == before->end)
            << span.kernel << " waits from " << before->end << " to " << span.begin;
        before = &span;
      }
    }
  });
}

// partition_activations: shares of inputs are cut and gathered on the device. In the first steps the host waits,
// to see that the ranks had the same.
TEST(SimDeviceActivations, SharesOfInputsOfRecomputedParts) {
  for (const Way way : {Way::recompute, Way::recompute_host}) {
    for (const Case& one :
         {Case{.name = "", .zero_stage = 1, .tensor = 2}, Case{.name = "", .stages = 2, .tensor = 2}}) {
      on_both(4, [&one, way](comm::World& world, at::Device device) {
        const mesh::Mesh mesh = mesh_of(world, one);
        InitializeOptions options = options_of(one, device, mesh);
        options.config.activations = {.policy = way, .shares_inputs = true, .least_bytes = 0};
        const auto engine = initialize(world, options).engine;
        EXPECT_TRUE(engine->activations()->options().shares_inputs);
        Seen seen;
        for (int i = 0; i < kSteps; ++i) {
          sim::reset_host_synchronisations();
          engine->train_batch();
          EXPECT_LE(sim::host_synchronisations(), device.is_cpu() ? 0 : 2)
              << testing::PrintToString(sim::host_synchronisation_names());
          add_step(seen, *engine);
        }
        EXPECT_EQ(engine->activations()->bytes_in() > 0, way == Way::recompute_host && !device.is_cpu());
        add_weights(seen, *engine);
        return seen;
      });
    }
  }
}

// On its clock a copy takes a millisecond, whatever its size, and a layer's kernels take many: moves are hidden,
// recomputation is not.
TEST(SimDeviceActivations, TheChoiceIsMeasuredOnTheDevice) {
  test::on_ranks(1, [&](comm::World& world) {
    start();
    const Case one{.name = "eight layers", .accumulation = 1};
    const DeviceRun keep = run(world, one, sim::device(), wanted(Way::keep), 8);
    const DeviceRun chosen =
        run(world, one, sim::device(), {.automatic = true, .memory_budget = keep.peak * 6 / 10}, 8);
    EXPECT_THAT(chosen.ways, testing::Contains(Way::host));
    EXPECT_LE(chosen.peak, keep.peak * 6 / 10);
    expect_same(chosen.seen, keep.seen);
    EXPECT_EQ(chosen.waits.back(), 0);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// A thousand million workers share the host: of its memory each has a few bytes.
TEST(SimDeviceActivations, NothingGoesToAHostWithoutRoom) {
  test::on_ranks(1, [&](comm::World& world) {
    start();
    ::setenv("TRIREME_LOCAL_WORKER", "0/1000000000", 1);
    const Case one{.name = "eight layers", .accumulation = 1};
    const DeviceRun keep = run(world, one, sim::device(), wanted(Way::keep), 8);
    const DeviceRun chosen =
        run(world, one, sim::device(), {.automatic = true, .memory_budget = keep.peak * 6 / 10}, 8);
    EXPECT_THAT(chosen.ways, testing::Each(testing::AnyOf(Way::keep, Way::recompute)));
    EXPECT_LE(chosen.peak, keep.peak * 6 / 10);
    expect_same(chosen.seen, keep.seen);
  });
}

} // namespace
} // namespace trireme::engine
