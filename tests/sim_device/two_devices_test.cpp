// Several devices in one process: nothing goes to the device that happens to be the thread's current one.
#include "engine_case.h"

#include <tests/support/run_ranks.h>

#include <trireme/device/host_scalars.h>
#include <trireme/device/upload.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include <gmock/gmock.h>

#include <thread>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

class SimDeviceTwoDevices : public testing::TestWithParam<Case> {};

TEST_P(SimDeviceTwoDevices, AnEngineIsOnOneThatIsNotCurrent) {
  const Case& one = GetParam();
  on_ranks(2, [&](comm::World& world) {
    start(2);
    const Seen cpu = train(*initialize(world, options_of(one, at::kCPU)).engine);
    const auto engine = initialize(world, options_of(one, sim::device(1))).engine;
    EXPECT_EQ(at::accelerator::getDeviceIndex(), 1) << "initialize() makes it the thread's";
    const c10::DeviceGuard current(sim::device(0));
    expect_same(train(*engine), cpu);
    EXPECT_EQ(sim::launches(0), 0);
    EXPECT_GT(sim::launches(1), 100);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

INSTANTIATE_TEST_SUITE_P(All, SimDeviceTwoDevices,
                         testing::Values(Case{.name = "zero0"}, Case{.name = "fp16", .type = precision::Type::fp16},
                                         Case{.name = "zero2_bf16", .zero_stage = 2, .type = precision::Type::bf16},
                                         Case{.name = "zero3", .zero_stage = 3},
                                         Case{.name = "step_in_backward", .clipping = 0, .step_in_backward = true},
                                         Case{.name = "lamb", .optimizer = "LAMB"},
                                         Case{.name = "states_int8", .states = optim::StateType::int8},
                                         Case{.name = "recompute_zero3", .zero_stage = 3, .recompute = 1},
                                         Case{.name = "pipe", .accumulation = 4, .stages = 2},
                                         Case{.name = "zero_bubble",
                                              .accumulation = 4,
                                              .stages = 2,
                                              .schedule = pipeline::ScheduleKind::zero_bubble}),
                         [](const auto& info) { return info.param.name; });

// Step by step in turn, with 1 and 2 ranks, in one thread.
TEST(SimDeviceTwoEngines, TrainInTurn) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [](comm::World& world) {
      start(2);
      const Case first{.name = "", .zero_stage = 1};
      const Case second{.name = "", .zero_stage = 3, .type = precision::Type::bf16};
      const Seen of_first = train(*initialize(world, options_of(first, at::kCPU)).engine);
      const Seen of_second = train(*initialize(world, options_of(second, at::kCPU)).engine);
      const auto on_first = initialize(world, options_of(first, sim::device(0))).engine;
      const auto on_second = initialize(world, options_of(second, sim::device(1))).engine;
      Seen seen_first, seen_second;
      for (int i = 0; i < kSteps; ++i) {
        const c10::DeviceGuard current(sim::device(i % 2));
        step(*on_first, [&] { on_first->train_batch(); });
        step(*on_second, [&] { on_second->train_batch(); });
        add_step(seen_first, *on_first);
        add_step(seen_second, *on_second);
      }
      add_weights(seen_first, *on_first);
      add_weights(seen_second, *on_second);
      expect_same(seen_first, of_first);
      expect_same(seen_second, of_second);
      EXPECT_THAT(sim::problems(), IsEmpty());
    });
  }
}

TEST(SimDeviceTwoEngines, BatchesAndScalarsGoToTheirDevice) {
  EXPECT_THAT(test::run_processes(1,
                                  [](int) {
                                    sim::start(2);
                                    device::Uploader uploader(sim::device(1));
                                    at::Tensor sum;
                                    sim::reset_host_synchronisations();
                                    for (int i = 0; i < 3; ++i) {
                                      device::add_scalar(sum, uploader.upload(torch::full({4}, i)).sum());
                                    }
                                    EXPECT_EQ(sim::host_synchronisations(), 0);
                                    EXPECT_EQ(device::read_scalars({sum, sum + 1}), (std::vector<double>{12, 13}));
                                    EXPECT_EQ(sim::host_synchronisations(), 1);
                                    EXPECT_EQ(sim::launches(0), 0);
                                    EXPECT_THAT(sim::problems(), IsEmpty());
                                  }),
              IsEmpty());
}

TEST(SimDeviceTwoEngines, CollectivesAndMessagesOfTheOtherDevice) {
  on_ranks(2, [](comm::World& world) {
    sim::start(2);
    const comm::Group group = world.group();
    group.open(sim::device(1));
    const at::Tensor tensor =
        torch::full({5000}, 1 + world.rank(), at::TensorOptions(at::kFloat).device(sim::device(1)));
    group.all_reduce(tensor, comm::ReduceOp::sum, "sum").wait();
    const at::Tensor all = torch::empty({10000}, tensor.options());
    group.all_gather(all, tensor, "all").wait();
    const at::Tensor message = torch::empty({5000}, tensor.options());
    auto received = group.recv(message, 1 - world.rank(), 7, "message");
    group.send(tensor, 1 - world.rank(), 7, "message").wait();
    received.wait();
    EXPECT_EQ(message.sum().item<float>(), 15000);
    EXPECT_EQ(all.sum().item<float>(), 30000);
    EXPECT_EQ(sim::launches(0), 0);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

} // namespace
} // namespace trireme::engine
