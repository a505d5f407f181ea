// What offload leaves where the model is, what it has elsewhere, and what it moves, against numbers by hand.
#include "moving_run.h"

#include <trireme/plan/estimate/gather_plan.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/moves.h>

#include <gmock/gmock.h>

namespace trireme::estimate {
namespace {

using offload::Place;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(MovesTest, WithoutOffloadNothingMoves) {
  for (const bool on_device : {false, true}) {
    const StageMoves moves = moves_of(moving(2, 3, on_device, Place::device)).front();
    EXPECT_THAT(moves.on_host, IsEmpty());
    EXPECT_THAT(moves.in_files, IsEmpty());
    EXPECT_THAT(moves.moved, IsEmpty());
  }
}

TEST(MovesTest, TheHostOfTheCpuIsWhereTheModelIs) {
  const estimate::Run plain = moving(2, 3, false, Place::device);
  const estimate::Run host = moving(2, 3, false, Place::host, Place::host);
  EXPECT_EQ(memory_of(host).front().training(), memory_of(plain).front().training());
  EXPECT_THAT(moves_of(host).front().moved, IsEmpty());
}

// ZeRO-Offload: parameters stay on the device, 2 bytes of each; masters, two moments and gradients are on the host.
TEST(MovesTest, ZeroOffloadLeavesParametersAndAFewBuckets) {
  for (const int64_t ranks : {1, 2}) {
    const estimate::Run run = moving(ranks, 2, true, Place::host);
    const StageMemory memory = memory_of(run).front();
    const StageMoves moves = moves_of(run).front();
    const int64_t F = memory.flat;
    EXPECT_EQ(bytes_in(memory, Category::parameters), 2 * F);
    EXPECT_EQ(bytes_in(memory, Category::gradients), 0);
    EXPECT_EQ(bytes_in(memory, Category::optimizer_states), 0);
    EXPECT_EQ(bytes_in(memory, Category::masters), 0);
    EXPECT_EQ(bytes_in(memory, Category::offload_buffers), 0);
    EXPECT_GE(bytes_in(memory, Category::communication_buffers), 2 * largest_buckets(layout_of(run, 0), 3))
        << "gradients on their way";
    EXPECT_THAT(memory.item(Category::masters).formula, HasSubstr("on the host"));
    EXPECT_EQ(named(moves.on_host, "optimizer_states"), 8 * F / ranks);
    EXPECT_EQ(named(moves.on_host, "masters"), 4 * F / ranks);
    EXPECT_EQ(named(moves.on_host, "gradients"), 2 * F / ranks);
    EXPECT_THAT(moves.in_files, IsEmpty());
    EXPECT_EQ(moves.bytes(Way::to_host), 2 * F / ranks);
    EXPECT_EQ(moves.bytes(Way::to_device), 2 * F / ranks) << "stepped parameters";
    EXPECT_EQ(moves.bytes(Way::from_files) + moves.bytes(Way::to_files), 0);
  }
}

// Gradients of each micro-batch are added to those on the host by the device: they come and go.
TEST(MovesTest, MicroBatchesAddUpOnTheHost) {
  estimate::Run run = moving(1, 2, true, Place::host);
  run.accumulation = 5;
  const int64_t F = memory_of(run).front().flat;
  const StageMoves moves = moves_of(run).front();
  EXPECT_EQ(named(moves.on_host, "gradients"), 4 * F) << "in fp32: 16 bytes of each parameter are on the host";
  EXPECT_EQ(
      named(moves.on_host, "gradients") + named(moves.on_host, "masters") + named(moves.on_host, "optimizer_states"),
      16 * F);
  EXPECT_EQ(moves.bytes(Way::to_host), 5 * 4 * F);
  EXPECT_EQ(moves.bytes(Way::to_device), 4 * 4 * F + 2 * F);
  run.zero.stage = 1; // the device adds up, and keeps them all
  EXPECT_EQ(moves_of(run).front().bytes(Way::to_host), 4 * F);
  EXPECT_EQ(bytes_in(memory_of(run).front(), Category::gradients), 4 * F);
  run.zero.stage = 2;
  run.data_ranks = 4;
  run.zero.shard_size = 2; // two copies add up what they have before the step
  EXPECT_EQ(bytes_in(memory_of(run).front(), Category::gradients), 4 * memory_of(run).front().flat / 2);
}

TEST(MovesTest, AParameterInFp32HasACopyOnTheHost) {
  estimate::Run run = moving(1, 2, true, Place::host);
  run.precision.compute = Type::fp32;
  const int64_t F = memory_of(run).front().flat;
  EXPECT_EQ(named(moves_of(run).front().on_host, "masters"), 4 * F);
  EXPECT_EQ(moves_of(run).front().bytes(Way::to_device), 4 * F);
  run.on_device = false;
  run.offload.optimizer.place = Place::nvme;
  EXPECT_EQ(named(moves_of(run).front().in_files, "masters"), 0) << "on the CPU it is its own master";
}

TEST(MovesTest, ADelayedUpdateHasTwoSetsOfGradientsAndAllParametersWaiting) {
  estimate::Run run = moving(1, 2, true, Place::host);
  run.offload.optimizer.delayed_update = true;
  const int64_t F = memory_of(run).front().flat;
  EXPECT_EQ(named(moves_of(run).front().on_host, "gradients"), 2 * 2 * F);
  EXPECT_EQ(named(moves_of(run).front().on_host, "stepped parameters"), 2 * F);
}

TEST(MovesTest, ARatioMovesWholeBucketsFromTheFront) {
  estimate::Run run = moving(1, 2, true, Place::host);
  const bucket::FlatLayout layout = layout_of(run, 0);
  ASSERT_GT(layout.buckets().size(), 4u);
  for (const double ratio : {0.0, 0.3, 0.5, 0.9, 1.0}) {
    run.offload.optimizer.ratio = ratio;
    int64_t there = 0;
    for (const bucket::Bucket& bucket : layout.buckets()) {
      const bool moved = static_cast<double>(bucket.begin) + static_cast<double>(bucket.numel()) / 2 <
                         ratio * static_cast<double>(layout.numel());
      there += moved ? bucket.numel() : 0;
    }
    const StageMemory memory = memory_of(run).front();
    const StageMoves moves = moves_of(run).front();
    EXPECT_EQ(named(moves.on_host, "masters"), 4 * there) << ratio;
    EXPECT_EQ(bytes_in(memory, Category::masters), 4 * (memory.flat - there)) << ratio;
    EXPECT_EQ(bytes_in(memory, Category::optimizer_states), 8 * (memory.flat - there)) << ratio;
    EXPECT_EQ(bytes_in(memory, Category::gradients), 2 * (memory.flat - there)) << ratio;
  }
  run.on_device = false;
  run.offload.optimizer = {.place = Place::nvme, .ratio = 0.5};
  EXPECT_EQ(named(moves_of(run).front().in_files, "masters"), 4 * layout.numel()) << "a ratio is of a device's";
}

TEST(MovesTest, ActivationsOfADeviceGoToItsHost) {
  estimate::Run run = moving(1, 1, true, Place::device);
  run.accumulation = 3;
  run.in_flight = {{2}};
  int64_t kept = 0;
  int64_t inputs = 0;
  for (size_t i = 1; i < run.model.layers.size(); ++i) {
    kept += run.model.layers[i].kept;
    inputs += run.model.layers[i].input;
  }
  const auto moves = [&](const activations::Options& options) {
    run.activations = options;
    return moves_of(run).front();
  };
  using activations::Way;
  const StageMoves host = moves({.policy = Way::host});
  EXPECT_EQ(named(host.on_host, kActivations), 2 * kept) << "of two micro-batches in flight";
  EXPECT_EQ(host.host_bytes(), 2 * kept);
  EXPECT_EQ(host.sure_host_peak(), host.host_peak());
  EXPECT_EQ(named(host.moved, kActivations, "to_host"), 3 * kept);
  EXPECT_EQ(named(host.moved, kActivations, "to_device"), 3 * kept);
  EXPECT_EQ(host.disk_bytes(), 0);
  EXPECT_EQ(moves({.policy = Way::recompute_host}).host_bytes(), 2 * inputs);
  EXPECT_EQ(moves({.policy = Way::recompute, .inputs_to_host = true}).host_bytes(), 2 * inputs) << "cpu_checkpointing";
  EXPECT_EQ(moves({.choices = {Way::keep, Way::keep, Way::host, Way::recompute_host}}).host_bytes(),
            2 * (run.model.layers[2].kept + run.model.layers[3].input));
  const StageMoves chosen = moves({.automatic = true, .memory_budget = 1});
  EXPECT_EQ(chosen.host_bytes(), 2 * kept) << "at most";
  EXPECT_EQ(chosen.sure_host_peak(), 2 * inputs) << "in the first two steps";
  const StageMoves files = moves({.policy = Way::nvme, .nvme_path = "/n"});
  EXPECT_EQ(files.activation_bytes(), 2 * kept);
  EXPECT_EQ(named(files.on_host, kActivations), 0);
  EXPECT_EQ(named(files.on_host, "buffers of files"), std::min(2 * kept, 5 * run.model.layers[2].kept))
      << "one leaves, four are written";
  EXPECT_EQ(files.bytes(estimate::Way::to_host), 3 * kept) << "through the host";
  EXPECT_EQ(files.bytes(estimate::Way::to_files), 3 * kept);
  EXPECT_THAT(moves({.policy = Way::recompute}).moved, IsEmpty());
  run.on_device = false;
  EXPECT_THAT(moves({.policy = Way::host}).on_host, IsEmpty()) << "where they are anyway";
  EXPECT_THAT(moves({.policy = Way::host}).moved, IsEmpty());
}

TEST(MovesTest, ParametersOfADeviceComeWhenTheyAreUsed) {
  const estimate::Run run = moving(2, 3, true, Place::host, Place::host);
  const StageMoves moves = moves_of(run).front();
  const bucket::FlatLayout layout = layout_of(run, 0);
  const int64_t each = unit_elements(layout) / 2;
  EXPECT_EQ(named(moves.on_host, "parameters"), 2 * each);
  EXPECT_EQ(named(moves.moved, kUnits, "to_device"), 2 * gather_plan(run, 0, layout).elements(layout) / 2)
      << "forward and backward";
  EXPECT_EQ(named(moves.moved, "stepped parameters", "to_device"), 2 * (layout.numel() / 2 - each))
      << "units are stepped where they stay";
  EXPECT_EQ(bytes_in(memory_of(run).front(), Category::parameters), 2 * whole_elements(layout));
}

// States stay on the device, and step there what comes and goes.
TEST(MovesTest, ShardsComeToADeviceThatHasTheirStates) {
  for (const Place place : {Place::host, Place::nvme}) {
    estimate::Run run = moving(2, 3, true, Place::device, place);
    const bucket::FlatLayout layout = layout_of(run, 0);
    const StageMemory memory = memory_of(run).front();
    const StageMoves moves = moves_of(run).front();
    const int64_t each = unit_elements(layout) / 2;
    EXPECT_EQ(bytes_in(memory, Category::parameters), 2 * whole_elements(layout));
    EXPECT_EQ(bytes_in(memory, Category::gradients), 2 * memory.flat / 2);
    EXPECT_EQ(bytes_in(memory, Category::optimizer_states), 8 * memory.flat / 2);
    EXPECT_EQ(bytes_in(memory, Category::masters), 4 * memory.flat / 2);
    EXPECT_EQ(bytes_in(memory, Category::offload_buffers), 2 * largest_units({&layout}, 3) / 2)
        << "one comes, one is stepped, one returns";
    EXPECT_EQ(named(moves.on_host, "parameters"), place == Place::host ? 2 * each : 0);
    EXPECT_EQ(
        named(moves.on_host, "optimizer_states") + named(moves.on_host, "masters") + named(moves.on_host, "gradients"),
        0);
    EXPECT_EQ(named(moves.moved, "parameters, to be stepped", "to_device"), 2 * each);
    EXPECT_EQ(moves.bytes(Way::to_device), 2 * each + named(moves.moved, kUnits, "to_device"));
    EXPECT_EQ(moves.bytes(Way::to_host), 2 * each);
    EXPECT_EQ(moves.bytes(Way::to_files), place == Place::nvme ? moves.file_bytes() : 0);
    run.optimizer.rule = optim::LambOptions{};
    EXPECT_EQ(moves_of(run).front().bytes(Way::to_device), moves.bytes(Way::to_device)) << "norms are those of masters";
    run.precision.compute = Type::fp32;
    const StageMoves twice = moves_of(run).front();
    EXPECT_EQ(named(twice.moved, "parameters, to be stepped", "to_device"), 2 * 4 * each)
        << "for the norms, and for the step";
    EXPECT_EQ(named(twice.moved, "parameters, to be stepped", "from_files"),
              place == Place::nvme ? 2 * twice.file_bytes() : 0);
    EXPECT_EQ(twice.bytes(Way::to_host), 4 * each);
  }
}

TEST(MovesTest, ARatioLeavesShardsToTheDevice) {
  estimate::Run run = moving(1, 3, true, Place::host, Place::host);
  const bucket::FlatLayout layout = layout_of(run, 0);
  for (const double ratio : {0.0, 0.3, 0.7, 1.0}) {
    run.offload.optimizer.ratio = ratio;
    int64_t on_device = 0;
    int64_t stepped = 0; // of units
    for (const bucket::Bucket& bucket : layout.buckets()) {
      const bool stays = static_cast<double>(bucket.begin) + static_cast<double>(bucket.numel()) / 2 >=
                         ratio * static_cast<double>(layout.numel());
      on_device += stays ? bucket.numel() : 0;
      stepped += stays && bucket.unit != bucket::TensorInfo::kNoUnit ? bucket.numel() : 0;
    }
    const StageMoves moves = moves_of(run).front();
    EXPECT_EQ(bytes_in(memory_of(run).front(), Category::masters), 4 * on_device) << ratio;
    EXPECT_EQ(named(moves.on_host, "parameters"), 2 * unit_elements(layout)) << "wherever their states are";
    EXPECT_EQ(named(moves.moved, "parameters, to be stepped", "to_device"), 2 * stepped) << ratio;
    EXPECT_EQ(named(moves.moved, "stepped parameters", "to_host"), 2 * stepped) << ratio;
    EXPECT_EQ(bytes_in(memory_of(run).front(), Category::offload_buffers) > 0, stepped > 0) << ratio;
  }
}

TEST(MovesTest, PipelineStagesHaveTheirOwn) {
  estimate::Run run = moving(1, 1, false, Place::nvme);
  run.stages = 2;
  run.bounds = {0, 4, std::ssize(run.model.layers)};
  run.in_flight = {{2}, {1}};
  const std::vector<StageMoves> moves = moves_of(run);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[1].stage, 1);
  run.stages = 1;
  run.bounds = {0, std::ssize(run.model.layers)};
  run.in_flight = {{1}};
  const double whole = static_cast<double>(moves_of(run).front().file_bytes());
  EXPECT_NEAR(static_cast<double>(moves[0].file_bytes() + moves[1].file_bytes()), whole, 0.1 * whole);
}

} // namespace
} // namespace trireme::estimate
