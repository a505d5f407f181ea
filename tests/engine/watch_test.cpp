// Hangs, stragglers and bad numbers as the engine's users meet them; the faults come from TRIREME_FAULT.
#include "small_run.h"

#include <trireme/base/error.h>
#include <trireme/comm/hang_report.h>

#include <tests/support/gate.h>
#include <tests/support/run_ranks.h>

#include <torch/nn/modules/activation.h>

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> run(int ranks, const std::string& fault, const std::function<void(comm::World&)>& body,
                             double timeout_seconds = 30, const std::string& folder = "") {
  return test::run_processes(ranks, [&](int) {
    setenv("TRIREME_FAULT", fault.c_str(), 1);
    setenv("TRIREME_RUN_DIR", folder.c_str(), 1);
    comm::WorldOptions options;
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
    comm::World world = comm::World::connect(options);
    body(world);
  });
}

test::Gate* wake = nullptr;

// Sleeps in the forward pass of its third micro-batch.
struct SleepyImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    if (++calls == 3) {
      wake->wait();
    }
    return x * 2;
  }
  int calls = 0;
};
TORCH_MODULE(Sleepy);

TEST(WatchTest, AStageThatSleepsInALayerIsNamedByTheOneThatWaits) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_watch_", ::getpid());
  test::Gate told;
  wake = &told;
  EXPECT_THAT(
      run(
          2, "",
          [](comm::World& world) {
            pipeline::PipelineOptions options;
            options.stages = 2;
            options.bounds = {0, 2, 4};
            InitializeOptions setup;
            setup.pipeline = std::make_shared<pipeline::PipelineModule>(
                pipeline::LayerList{nn::Linear(4, 4), nn::Tanh(), pipeline::LayerSpec<Sleepy>(), nn::Linear(4, 1)},
                [](const auto& outputs, const auto& targets) { return at::mse_loss(outputs.at(0), targets.at(0)); },
                options);
            setup.config = small_config(12, 4);
            const auto engine = initialize(world, setup).engine;
            const auto next = [] { return data::Batch{{torch::ones({3, 4})}, {torch::ones({3, 1})}, 3}; };
            std::string error = "none";
            try {
              engine->train_batch(next);
            } catch (const PeerError& problem) {
              error = problem.what();
            }
            if (world.rank() == 0) {
              EXPECT_THAT(error, AllOf(HasSubstr("(\"gradients from stage 1 to stage 0\""), HasSubstr("rank 1"),
                                       HasSubstr("in layer 2 (Sleepy), in forward of micro-batch 2, in step 1, for")));
              while (!fs::exists(fs::path(std::getenv("TRIREME_RUN_DIR")) /
                                 "hang-rank1.json")) { // who wakes up before has left the layer
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
              }
              wake->open();
            }
          },
          3, folder.string()),
      IsEmpty());
  EXPECT_THAT(comm::describe_hang(folder), AllOf(HasSubstr("held up by: rank 1 is in layer 2 (Sleepy)"),
                                                 HasSubstr("rank 0 waits"), HasSubstr("recv gradient of micro-batch")));
  fs::remove_all(folder);
}

TEST(WatchTest, ALateRankIsNamedWithinTwentySteps) {
  EXPECT_THAT(run(2, "phase=forward,kind=delay,seconds=0.02;rank=1,phase=backward,kind=delay,seconds=0.03",
                  [](comm::World& world) {
                    SmallRun small(world, small_config(8, 1));
                    int64_t named_at = 0;
                    for (int step = 1; step <= 20 && named_at == 0; ++step) {
                      small.engine().train_batch();
                      named_at = small.engine().straggler() ? step : 0;
                    }
                    ASSERT_GT(named_at, 0) << "within 20 steps";
                    EXPECT_EQ(small.engine().straggler()->rank, 1);
                    EXPECT_EQ(small.engine().straggler()->phase, "backward");
                    EXPECT_GT(small.engine().straggler()->last_share, 0.8);
                    if (world.rank() == 0) {
                      EXPECT_GT(small.engine().times().exposed_communication, 0.01) << "the others wait for it";
                    }
                  }),
              IsEmpty());
}

TEST(WatchTest, RanksThatTakeTheSameTimeAreNoStragglers) {
  EXPECT_THAT(run(2, "phase=forward,kind=delay,seconds=0.05",
                  [](comm::World& world) {
                    SmallRun small(world, small_config(8, 1));
                    for (int step = 1; step <= 40; ++step) {
                      small.engine().train_batch();
                      EXPECT_FALSE(small.engine().straggler()) << "step " << step;
                    }
                  }),
              IsEmpty());
}

TEST(WatchTest, ANanInOneRanksGradientIsSkippedByAll) {
  for (const char* phase : {"backward", "forward", "all_reduce"}) {
    SCOPED_TRACE(phase);
    EXPECT_THAT(run(2, concat("rank=1,step=3,phase=", phase, ",kind=nan"),
                    [](comm::World& world) {
                      SmallRun small(world, small_config(8, 2));
                      for (int step = 1; step <= 5; ++step) {
                        small.engine().train_batch();
                        EXPECT_EQ(small.engine().skipped_steps(), step < 3 ? 0 : 1) << "step " << step;
                      }
                      EXPECT_TRUE(std::isfinite(small.engine().loss()));
                    }),
                IsEmpty());
  }
}

} // namespace
} // namespace trireme::engine
