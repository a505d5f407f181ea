// Asked to stop at different times, ranks stop after the same step.
#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/engine/preemption.h>
#include <trireme/parallel/pipeline/module.h>

#include <tests/support/run_ranks.h>

#include <torch/nn/modules/activation.h>

#include <gmock/gmock.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace trireme::engine {
namespace {

using pipeline::LayerList;
using pipeline::LayerSpec;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

// The step after which everybody agrees, of at most 12; each rank checks that the others stop there too.
int64_t stop_step(comm::World& world, Engine& engine, const std::function<void(int64_t step)>& before_step) {
  while (engine.global_steps() < 12 && !engine.stop_agreed()) {
    before_step(engine.global_steps() + 1);
    engine.train_batch();
  }
  at::Tensor bounds = torch::tensor({engine.global_steps(), -engine.global_steps()}, torch::kInt64);
  world.group().all_reduce(bounds, comm::ReduceOp::max, "steps").wait();
  EXPECT_EQ(bounds[0].item<int64_t>(), -bounds[1].item<int64_t>());
  return engine.global_steps();
}

TEST(PreemptionTest, OneRankIsAskedAndAllStopAfterTheSameStep) {
  for (const int asked : {0, 2}) {
    for (const int64_t accumulation : {1, 2}) {
      on_ranks(3, [&](comm::World& world) {
        const Preemption preemption;
        SmallRun run(world, small_config(12, accumulation));
        EXPECT_EQ(stop_step(world, run.engine(),
                            [&](int64_t step) {
                              if (world.rank() == asked && step == 5) {
                                ::raise(asked == 0 ? SIGTERM : SIGUSR1);
                              }
                            }),
                  5);
        EXPECT_EQ(Preemption::asked() != 0, world.rank() == asked);
        EXPECT_EQ(Preemption::reason(), world.rank() != asked ? "a signal to another rank"
                                        : asked == 0          ? "SIGTERM"
                                                              : "SIGUSR1");
      });
    }
  }
}

TEST(PreemptionTest, NobodyAskedNobodyStops) {
  on_ranks(2, [&](comm::World& world) {
    const Preemption preemption;
    SmallRun run(world, small_config(12, 1));
    EXPECT_EQ(stop_step(world, run.engine(), [](int64_t) {}), 12);
    EXPECT_FALSE(run.engine().stop_agreed());
  });
}

// Two stages x two replicas. A stage that trains nothing has no bucket for the question to travel with.
TEST(PreemptionTest, AllStagesOfAllPipelinesStopTogether) {
  for (const std::string idle : {"no stage", "the first stage", "the last stage"}) {
    for (int asked = 0; asked < 4; ++asked) {
      EXPECT_THAT(
          run_ranks(
              4,
              [&](comm::World& world) {
                const Preemption preemption;
                pipeline::PipelineOptions options;
                options.stages = 2;
                options.bounds = {0, 2, 3};
                options.seed_layers = true;
                LayerList layers;
                if (idle == "the first stage") {
                  layers = {[](const at::Tensor& x) { return torch::cat({x, -x}, 1); }, torch::nn::Tanh()};
                } else {
                  layers = {LayerSpec<torch::nn::Linear>(4, 8), torch::nn::Tanh()};
                }
                if (idle == "the last stage") {
                  layers.push_back([](const at::Tensor& x) { return x.sum(1, true); });
                } else {
                  layers.push_back(LayerSpec<torch::nn::Linear>(8, 1));
                }
                InitializeOptions initialize_options;
                initialize_options.pipeline = std::make_shared<pipeline::PipelineModule>(
                    layers,
                    [](const pipeline::Tensors& out, const pipeline::Tensors& want) {
                      return at::mse_loss(out.at(0), want.at(0));
                    },
                    options);
                initialize_options.config = config::read_deepspeed(JsonNode::parse(
                    R"({"train_micro_batch_size_per_gpu": 3, "train_batch_size": 24, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                    "test.json"));
                const auto engine = initialize(world, initialize_options).engine;
                const auto batch = [] {
                  const at::Tensor x = torch::linspace(-1, 1, 12).view({3, 4});
                  return data::Batch{{x}, {x.sum(1, true)}, 3};
                };
                while (engine->global_steps() < 6 && !engine->stop_agreed()) {
                  if (world.rank() == asked && engine->global_steps() == 2) {
                    Preemption::ask();
                  }
                  engine->train_batch(batch);
                }
                EXPECT_EQ(engine->global_steps(), 3) << "rank " << world.rank();
              }),
          IsEmpty())
          << "rank " << asked << " asked, " << idle << " trains nothing";
    }
  }
}

TEST(PreemptionTest, ASecondSignalEndsTheProcess) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Preemption preemption;
    ::raise(SIGTERM);
    ::raise(SIGTERM); // at once: the same request
    if (Preemption::asked() == SIGTERM) {
      ::usleep(400'000);
      ::raise(SIGTERM);
    }
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(PreemptionTest, PutsBackWhatWasThere) {
  struct sigaction before{};
  ::sigaction(SIGTERM, nullptr, &before);
  {
    const Preemption preemption;
    EXPECT_THROW(Preemption(), Error);
    Preemption::ask();
    EXPECT_EQ(Preemption::asked(), SIGTERM);
  }
  EXPECT_EQ(Preemption::asked(), 0);
  struct sigaction after{};
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

} // namespace
} // namespace trireme::engine
