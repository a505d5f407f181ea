// Steps that do not go as most do: many skipped in a row, a loss that the user's function has brought to the host, a
// norm that is asked for.
#include "engine_case.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace trireme::engine {
namespace {

using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

/// options_of() with another loss, made of the model's.
InitializeOptions with_loss(const Case& one, at::Device device,
                            const std::function<at::Tensor(const at::Tensor& loss)>& change) {
  InitializeOptions options = options_of(one, device);
  if (options.pipeline) {
    pipeline::PipelineOptions stages;
    stages.stages = one.stages;
    options.pipeline = std::make_shared<pipeline::PipelineModule>(
        models::gpt_layers(small_gpt()),
        [change](const auto& output, const auto& target) { return change(models::token_loss(output, target)); },
        stages);
  } else {
    options.loss = [change, loss = options.loss](const data::Batch& batch) { return change(loss(batch).loss); };
  }
  return options;
}

// The error of the twentieth skipped step leaves parameters as they were, so training can go on with another loss.
TEST(SimDeviceUnusualSteps, TooManySkippedStepsLeaveAnEngineThatGoesOn) {
  for (const char* optimizer : {"AdamW", "LAMB"}) {
    EXPECT_THAT(run_ranks(1,
                          [&](comm::World& world) {
                            start();
                            const auto run = [&](at::Device device) {
                              bool bad = true;
                              const auto engine =
                                  initialize(world,
                                             with_loss({.name = "", .accumulation = 1, .optimizer = optimizer}, device,
                                                       [&](const at::Tensor& loss) {
                                                         return bad ? loss * std::numeric_limits<double>::quiet_NaN()
                                                                    : loss;
                                                       }))
                                      .engine;
                              std::string why;
                              for (int step = 0; step < 40 && why.empty(); ++step) {
                                try {
                                  engine->train_batch();
                                } catch (const Error& error) {
                                  why = error.what();
                                }
                              }
                              EXPECT_THAT(why, HasSubstr("20 steps in a row"));
                              bad = false;
                              return train(*engine);
                            };
                            const Seen cpu = run(at::kCPU);
                            expect_same(run(sim::device()), cpu);
                            EXPECT_THAT(sim::problems(), IsEmpty());
                          }),
                IsEmpty())
        << optimizer;
  }
}

class SimDeviceHostLoss : public testing::TestWithParam<Case> {};

// The function's own wait is all that it costs.
TEST_P(SimDeviceHostLoss, TrainsAndClipsLikeALossOfTheDevice) {
  const Case& one = GetParam();
  for (const int replicas : {1, 2}) {
    EXPECT_THAT(run_ranks(one.stages * replicas,
                          [&](comm::World& world) {
                            start();
                            const Seen cpu = train(*initialize(world, options_of(one, at::kCPU)).engine);
                            int64_t calls = 0; // every other loss comes to the host
                            const auto engine =
                                initialize(world, with_loss(one, sim::device(),
                                                            [&](const at::Tensor& loss) {
                                                              return ++calls % 2 == 1 ? loss.cpu() : loss;
                                                            }))
                                    .engine;
                            Seen device;
                            for (int step = 0; step < kSteps; ++step) {
                              engine->train_batch();
                              EXPECT_LE(engine->host_syncs(), 1);
                              add_step(device, *engine);
                            }
                            add_weights(device, *engine);
                            expect_same(device, cpu);
                            if (one.clipping > 0) {
                              EXPECT_GT(device.numbers[1], 0) << "the norm";
                            }
                            EXPECT_THAT(sim::problems(), IsEmpty());
                          }),
                IsEmpty())
        << replicas << " replicas";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SimDeviceHostLoss,
    testing::Values(Case{.name = "one_micro_batch", .accumulation = 1},
                    Case{.name = "two_micro_batches", .accumulation = 2},
                    Case{.name = "zero3", .zero_stage = 3, .accumulation = 3},
                    Case{.name = "step_in_backward", .accumulation = 1, .clipping = 0, .step_in_backward = true},
                    Case{.name = "pipeline", .accumulation = 3, .stages = 2}),
    [](const auto& info) { return info.param.name; });

// Where the norm is wanted nothing is stepped during backward, and loss and norm leave together as in other steps.
TEST(SimDeviceUnusualSteps, ANormThatIsWantedCostsNoSecondWaitWithStepInBackward) {
  for (const int stage : {0, 2, 3}) {
    EXPECT_THAT(
        run_ranks(2,
                  [&](comm::World& world) {
                    start();
                    const auto run = [&](at::Device device) {
                      const auto engine =
                          initialize(
                              world,
                              options_of({.name = "", .zero_stage = stage, .clipping = 0, .step_in_backward = true},
                                         device))
                              .engine;
                      Seen seen;
                      for (int i = 0; i < 6; ++i) {
                        engine->want_grad_norm(i % 3 != 0);
                        step(*engine, [&] { engine->train_batch(); });
                        EXPECT_LE(engine->host_syncs(), 1);
                        EXPECT_EQ(engine->get_global_grad_norm().has_value(), i % 3 != 0);
                        add_step(seen, *engine);
                      }
                      add_weights(seen, *engine);
                      return seen;
                    };
                    const Seen cpu = run(at::kCPU);
                    expect_same(run(sim::device()), cpu);
                    EXPECT_THAT(sim::problems(), IsEmpty());
                  }),
        IsEmpty())
        << "ZeRO stage " << stage;
  }
}

} // namespace
} // namespace trireme::engine
