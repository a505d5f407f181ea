// What offload has in files, and what it reads and writes, against numbers by hand.
#include "moving_run.h"

#include <trireme/plan/estimate/gather_plan.h>
#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/estimate/verdict.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::estimate {
namespace {

using offload::Place;
using testing::IsEmpty;

constexpr int64_t kBlock = 4096;

int64_t blocks(int64_t bytes) {
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// Every array's part of a bucket fills whole blocks; each bucket is read and written once a step.
TEST(FileMovesTest, StatesInFilesAreReadAndWrittenOnce) {
  for (const int64_t ranks : {1, 2, 4}) {
    estimate::Run run = moving(ranks, 1, false, Place::nvme);
    int64_t bytes = 0;
    int64_t largest = 0;
    const bucket::FlatLayout layout = layout_of(run, 0);
    for (const bucket::Bucket& bucket : layout.buckets()) {
      const int64_t here = 3 * blocks(4 * bucket.numel() / ranks);
      bytes += here;
      largest = std::max(largest, here);
    }
    ASSERT_GT(std::ssize(layout.buckets()), run.offload.optimizer.buffer_count);
    const StageMemory memory = memory_of(run).front();
    const StageMoves moves = moves_of(run).front();
    EXPECT_EQ(moves.file_bytes(), bytes);
    EXPECT_EQ(moves.bytes(Way::from_files), bytes);
    EXPECT_EQ(moves.bytes(Way::to_files), bytes);
    EXPECT_EQ(moves.initial_states, bytes);
    EXPECT_EQ(bytes_in(memory, Category::offload_buffers), 4 * largest);
    EXPECT_EQ(bytes_in(memory, Category::optimizer_states) + bytes_in(memory, Category::masters), 0);
    EXPECT_EQ(bytes_in(memory, Category::gradients), 2 * memory.flat) << "of a rank on the CPU they stay";
    EXPECT_THAT(moves.on_host, IsEmpty());
    run.optimizer.rule = optim::LambOptions{};
    EXPECT_EQ(moves_of(run).front().bytes(Way::from_files), 2 * bytes) << "LAMB needs the norms first";
    EXPECT_EQ(moves_of(run).front().bytes(Way::to_files), 2 * bytes);
    run.optimizer.rule = optim::AdamOptions{};
    run.offload.optimizer.fast_init = true;
    EXPECT_EQ(moves_of(run).front().initial_states, 0);
    run.offload.optimizer.buffer_count = std::ssize(layout.buckets());
    EXPECT_EQ(moves_of(run).front().bytes(Way::from_files), 0)
        << "all of them have memory: what was written is there still";
    EXPECT_EQ(moves_of(run).front().bytes(Way::to_files), bytes);
  }
}

// SGD without momentum in fp32 has no states, and parameters of units that stay elsewhere are their own masters: only
// what is in no unit has a master in files.
TEST(FileMovesTest, FewBucketsWithMastersAreNotReadAgain) {
  estimate::Run run = moving(2, 3, true, Place::nvme, Place::nvme);
  run.precision.compute = Type::fp32;
  run.optimizer.rule = optim::SgdOptions{};
  run.zero.param_persistence_threshold = 100;
  const bucket::FlatLayout layout = layout_of(run, 0);
  int64_t masters = 0;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    masters += bucket.unit == bucket::TensorInfo::kNoUnit ? blocks(4 * bucket.numel() / 2) : 0;
  }
  ASSERT_GT(masters, 0);
  ASSERT_GT(std::ssize(layout.buckets()), run.offload.optimizer.buffer_count);
  const StageMoves moves = moves_of(run).front();
  EXPECT_EQ(named(moves.moved, kMovedStates, "to_files"), masters);
  EXPECT_EQ(named(moves.moved, kMovedStates, "from_files"), 0);
}

TEST(FileMovesTest, EightBitStatesHaveScalesInFiles) {
  estimate::Run run = moving(1, 1, false, Place::nvme);
  run.optimizer.state_type = optim::StateType::int8;
  int64_t bytes = 0;
  const bucket::FlatLayout layout = layout_of(run, 0);
  for (const bucket::Bucket& bucket : layout.buckets()) {
    bytes += blocks(4 * bucket.numel()) + 2 * (blocks(bucket.numel()) + blocks(4 * ((bucket.numel() + 255) / 256)));
  }
  EXPECT_EQ(moves_of(run).front().file_bytes(), bytes);
}

// ZeRO-Infinity on the CPU: nothing of the model stays but what is gathered and the buffers.
TEST(FileMovesTest, ParametersInFilesLeaveBuffers) {
  for (const int64_t ranks : {1, 2}) {
    estimate::Run run = moving(ranks, 3, false, Place::nvme, Place::nvme);
    run.accumulation = 2;
    const bucket::FlatLayout layout = layout_of(run, 0);
    const StageMemory memory = memory_of(run).front();
    const StageMoves moves = moves_of(run).front();
    int64_t sharded = 0;
    int64_t parameters = 0;
    int64_t gradients = 0;
    for (const bucket::Bucket& bucket : layout.buckets()) {
      sharded += bucket.unit == bucket::TensorInfo::kNoUnit ? 0 : bucket.numel() / ranks;
      parameters += bucket.unit == bucket::TensorInfo::kNoUnit ? 0 : blocks(2 * bucket.numel() / ranks);
      gradients += blocks(4 * bucket.numel() / ranks);
    }
    ASSERT_GT(sharded, 0) << "a rank alone has units too";
    EXPECT_EQ(bytes_in(memory, Category::parameters), 2 * (whole_elements(layout)));
    EXPECT_EQ(bytes_in(memory, Category::gradients), 0);
    EXPECT_EQ(named(moves.in_files, "parameters"), parameters);
    EXPECT_EQ(named(moves.in_files, "gradients"), gradients);
    EXPECT_EQ(named(moves.moved, "stepped parameters", "to_files"), parameters);
    EXPECT_EQ(named(moves.moved, "gradients", "to_files"), 2 * gradients);
    EXPECT_EQ(named(moves.moved, "gradients", "from_files"), 3 * gradients);
    const int64_t used = gather_plan(run, 0, layout).elements(layout) / ranks;
    EXPECT_LE(used, 4 * sharded) << "for each forward and backward of two micro-batches";
    EXPECT_GT(used, 2 * sharded);
    EXPECT_EQ(named(moves.moved, kUnits, "from_files"), 2 * used);
    run.offload.parameters.max_in_cpu = sharded;
    EXPECT_EQ(named(moves_of(run).front().in_files, "parameters"), 0);
    EXPECT_EQ(bytes_in(memory_of(run).front(), Category::parameters), 2 * (sharded + whole_elements(layout)));
    const auto reads = [&] { return named(moves_of(run).front().moved, "gradients", "from_files"); };
    run.optimizer.rule = optim::LambOptions{};
    EXPECT_EQ(reads(), 4 * gradients) << "LAMB needs the norms first";
    run.optimizer.rule = optim::AdamOptions{};
    run.clips = false;
    EXPECT_EQ(reads(), 2 * gradients) << "no norm of all";
    run.stages = 2; // which add up before anything leaves
    run.bounds = {0, 4, std::ssize(run.model.layers)};
    run.in_flight = {{2}, {1}};
    run.offload.optimizer.buffer_count = 1;
    const StageMoves stage = moves_of(run).front();
    EXPECT_GT(named(stage.in_files, "gradients"), 0);
    EXPECT_EQ(named(stage.moved, "gradients", "to_files"), named(stage.in_files, "gradients"));
    EXPECT_EQ(named(stage.moved, "gradients", "from_files"), named(stage.in_files, "gradients"));
  }
}

// They pass through buffers on its host; the norm is taken on the device as they leave.
TEST(FileMovesTest, GradientsOfADeviceAreInFilesWhereMastersAndParametersAre) {
  for (const double ratio : {1.0, 0.5}) {
    estimate::Run run = moving(2, 3, true, Place::nvme, Place::nvme);
    run.accumulation = 3;
    run.clips = true;
    run.offload.optimizer.ratio = ratio;
    run.offload.optimizer.buffer_count = 1;
    const bucket::FlatLayout layout = layout_of(run, 0);
    const int64_t moved = elsewhere_of(run, layout).state_buckets;
    ASSERT_EQ(moved < std::ssize(layout.buckets()), ratio < 1);
    int64_t elements = 0;
    int64_t in_files = 0;
    for (int64_t b = 0; b < moved; ++b) {
      const int64_t each = layout.buckets()[b].numel() / 2;
      elements += each;
      in_files += blocks(4 * each);
    }
    const StageMoves moves = moves_of(run).front();
    EXPECT_EQ(named(moves.in_files, "gradients"), in_files);
    EXPECT_EQ(named(moves.on_host, "gradients"), 0);
    EXPECT_EQ(bytes_in(memory_of(run).front(), Category::gradients), 4 * (layout.numel() / 2 - elements));
    EXPECT_EQ(named(moves.moved, "gradients", "to_host"), 3 * 4 * elements);
    EXPECT_EQ(named(moves.moved, "gradients, to be added to", "to_device"), 2 * 4 * elements);
    EXPECT_EQ(named(moves.moved, "gradients", "to_files"), 3 * in_files);
    EXPECT_EQ(named(moves.moved, "gradients", "from_files"), 3 * in_files) << "twice to be added to, and for the step";
    run.offload.parameters.place = Place::host;
    const StageMoves on_host = moves_of(run).front();
    EXPECT_EQ(named(on_host.in_files, "gradients"), 0);
    EXPECT_EQ(named(on_host.on_host, "gradients"), 4 * elements);
  }
}

// A layer is built with all its parameters in one bucket; its file goes when it has moved to the others.
TEST(FileMovesTest, ParametersAreInFilesTwiceAtTheStart) {
  for (const int64_t ranks : {1, 2}) {
    for (const Place states : {Place::device, Place::nvme}) {
      estimate::Run run = moving(ranks, 3, false, states, Place::nvme);
      int64_t built = 0;
      for (size_t i = 0; i + 1 < run.model.layers.size(); ++i) { // the head has the embedding's parameters
        const Layer& layer = run.model.layers[i];
        int64_t padded = 0; // to 64 bytes, and the bucket to 64 of each rank
        for (const Parameter& parameter : layer.parameters) {
          padded += (parameter.numel + 31) / 32 * 32;
        }
        built += layer.parameters.empty() ? 0 : blocks(2 * ((padded + 32 * ranks - 1) / (32 * ranks) * 32));
      }
      const StageMoves moves = moves_of(run).front();
      EXPECT_EQ(moves.building_bytes(), built);
      EXPECT_EQ(moves.built_parameters, built + named(moves.in_files, "parameters")) << "written to both";
      EXPECT_EQ(moves.disk_bytes(),
                states == Place::nvme ? moves.file_bytes() : built + named(moves.in_files, "parameters"))
          << "12 bytes of masters and states come later";
      run.offload.parameters.max_in_cpu = 1'000'000;
      EXPECT_EQ(named(moves_of(run).front().in_files, "parameters"), 0);
      EXPECT_EQ(moves_of(run).front().building_bytes(), built) << "what memory keeps later too";
    }
  }
  EXPECT_EQ(moves_of(moving(2, 3, false, Place::nvme)).front().disk_bytes(),
            moves_of(moving(2, 3, false, Place::nvme)).front().file_bytes());
}

TEST(FileMovesTest, ActivationsInFilesAreThoseOfTheMicroBatchesInFlight) {
  estimate::Run run = moving(1, 1, false, Place::device);
  run.accumulation = 3;
  run.activations.nvme_path = "/n";
  run.activations.policy = activations::Way::nvme;
  int64_t kept = 0;
  for (size_t i = 1; i < run.model.layers.size(); ++i) { // the first has no inputs that need a gradient
    kept += run.model.layers[i].kept;
  }
  ASSERT_GT(kept, 0);
  StageMoves moves = moves_of(run).front();
  EXPECT_EQ(moves.activation_bytes(), kept);
  EXPECT_EQ(moves.bytes(Way::to_files), 3 * kept);
  EXPECT_EQ(moves.bytes(Way::from_files), 3 * kept);
  EXPECT_EQ(moves.disk_bytes(), kept);
  run.in_flight = {{2}};
  EXPECT_EQ(moves_of(run).front().activation_bytes(), 2 * kept);
  run.in_flight = {{1}};
  run.activations.policy = activations::Way::keep;
  run.activations.choices = {activations::Way::keep, activations::Way::keep, activations::Way::nvme,
                             activations::Way::recompute_nvme};
  EXPECT_EQ(moves_of(run).front().activation_bytes(), run.model.layers[2].kept + run.model.layers[3].input);
  run.activations.choices.clear();
  run.activations.policy.reset();
  run.activations.automatic = true;
  const int64_t chosen = moves_of(run).front().activation_bytes();
  EXPECT_GT(chosen, 0) << "the inputs";
  EXPECT_LT(chosen, kept);
}

// What is in files does not count against memory.
TEST(FileMovesTest, TheVerdictKnowsFiles) {
  const estimate::Run plain = moving(1, 1, false, Place::device);
  const estimate::Run files = moving(1, 1, false, Place::nvme);
  const Need with = need_of(memory_of(files), 1);
  const Need without = need_of(memory_of(plain), 1);
  EXPECT_EQ(without.least_of_a_rank - with.least_of_a_rank, 12 * memory_of(plain).front().flat);
}

} // namespace
} // namespace trireme::estimate
