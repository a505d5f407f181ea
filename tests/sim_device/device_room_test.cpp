// `trireme train` on a simulated device that is too small says so before anything is built.
#include "sim_device.h"

#include <tests/support/run_ranks.h>
#include <tests/tools/small_training.h>

#include <trireme/base/error.h>
#include <trireme/device/memory.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using testing::HasSubstr;

class SimDeviceRoomTest : public SmallTrainingTest {
 protected:
  // 12.7 million parameters: 204 MB of states in fp32.
  static json large() {
    json run = common();
    run["model"].update({{"layers", 4}, {"hidden", 512}});
    run["training"] = {{"steps", 1}, {"checkpoint_every", 0}};
    run["engine"]["zero_optimization"] = {{"reduce_bucket_size", 1'000'000}};
    return run;
  }
  static std::string refusal(comm::World& world, const json& run) {
    try {
      run_training(world, run, false, sim::device());
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(SimDeviceRoomTest, ARunThatDoesNotFitIsRefusedBeforeItIsBuilt) {
  test::on_ranks(1, [](comm::World& world) {
    sim::start();
    sim::set_memory_size(160'000'000);
    const auto room = device::memory_room(sim::device());
    ASSERT_TRUE(room);
    EXPECT_EQ(room->free_bytes, room->bytes);
    const std::string said = refusal(world, large());
    EXPECT_THAT(said, HasSubstr("this run cannot fit: a rank needs 222 MB"));
    EXPECT_THAT(said,
                HasSubstr("of its GPU (optimizer states 102 MB, parameters 51.0 MB, gradients 51.0 MB, activations"));
    EXPECT_THAT(said, HasSubstr("which has 160 MB free"));
    EXPECT_THAT(said, HasSubstr("on the GPU: --set engine.zero_optimization.stage=2 --set "
                                "engine.zero_optimization.offload_optimizer.device=cpu. `trireme estimate"));
    EXPECT_THAT(said, HasSubstr("--no-memory-check starts the run anyway"));
    EXPECT_EQ(sim::memory().peak, 0);
  });
}

TEST_F(SimDeviceRoomTest, WhatARefusalProposesFits) {
  test::on_ranks(1, [](comm::World& world) {
    sim::start();
    sim::set_memory_size(160'000'000);
    json run = large();
    run["engine"]["zero_optimization"].update({{"stage", 2}, {"offload_optimizer", {{"device", "cpu"}}}});
    EXPECT_EQ(refusal(world, run), "");
    EXPECT_GT(sim::memory().peak, 50'000'000);
    EXPECT_EQ(device::memory_room(sim::device())->bytes, 160'000'000);
  });
}

// What others have on the device is not free.
TEST_F(SimDeviceRoomTest, OnlyFreeMemoryCounts) {
  test::on_ranks(1, [](comm::World& world) {
    sim::start();
    sim::set_memory_size(400'000'000);
    const at::Tensor taken = torch::empty({300'000'000}, at::TensorOptions(sim::device()).dtype(at::kByte));
    EXPECT_THAT(refusal(world, large()), HasSubstr("which has 100 MB free"));
  });
}

TEST_F(SimDeviceRoomTest, RanksThatNameOneDeviceShareIt) {
  json run = large(); // in the folder of this process
  run["training"]["device"] = "cuda:0";
  test::on_ranks(2, [&](comm::World& world) {
    sim::start();
    sim::set_memory_size(380'000'000);
    const std::string said = refusal(world, run);
    EXPECT_THAT(said, HasSubstr("which has 190 MB free"));
    EXPECT_THAT(said, HasSubstr("Fits with about"));
  });
}

} // namespace
} // namespace trireme::tools
