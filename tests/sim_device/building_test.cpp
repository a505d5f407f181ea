// What a device has while a model is built whose states are on its host.
#include "offload_case.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

void forget_peak() {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kPrivateUse1));
  allocator->resetPeakStats(0);
}

// Parameters as the engine has them, with the padding of the flat buffer.
int64_t parameter_bytes(Engine& engine) {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : engine.module().parameters()) {
    EXPECT_EQ(parameter.device(), sim::device());
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

TEST(SimDeviceBuildingTest, NeedsNoMoreOfADeviceThanTraining) {
  for (const int stages : {1, 2}) {
    for (const Offloaded& one : {Offloaded{{.name = "bf16, stage 2", .zero_stage = 2, .type = precision::Type::bf16}},
                                 Offloaded{{.name = "fp32, stage 2", .zero_stage = 2}},
                                 Offloaded{{.name = "bf16, stage 0", .type = precision::Type::bf16}}}) {
      SCOPED_TRACE(concat(one.run.name, ", stages ", stages));
      Offloaded run = one;
      run.run.stages = stages;
      test::on_ranks(stages, [&](comm::World& world) {
        start();
        const auto engine = engine_of(world, run, sim::device());
        const int64_t built = sim::memory().peak;
        const int64_t has_gradients = run.run.zero_stage == 2 ? 0 : 1;
        EXPECT_LT(built, (2 + 4 * has_gradients) * parameter_bytes(*engine)) << "parameters once";
        forget_peak();
        Seen seen;
        train_steps(*engine, 2, seen);
        EXPECT_LE(built, sim::memory().peak);
        EXPECT_THAT(sim::problems(), testing::IsEmpty());
      });
    }
  }
}

// Frozen parameters are in no flat buffer.
TEST(SimDeviceBuildingTest, MovesFrozenParametersToo) {
  test::on_ranks(1, [](comm::World& world) {
    start();
    const Offloaded one{{.name = "", .zero_stage = 2, .type = precision::Type::bf16}};
    InitializeOptions options = options_of(one, sim::device(), mesh_of(world, one.run));
    options.model->parameters().front().set_requires_grad(false);
    const auto engine = initialize(world, options).engine;
    parameter_bytes(*engine);
    Seen seen;
    train_steps(*engine, 1, seen);
    EXPECT_GT(seen.numbers.front(), 0);
    EXPECT_THAT(sim::problems(), testing::IsEmpty());
  });
}

} // namespace
} // namespace trireme::engine
