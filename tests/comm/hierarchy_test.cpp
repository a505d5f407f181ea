#include <trireme/comm/hierarchy/host_blocks.h>
#include <trireme/comm/hierarchy/task_thread.h>
#include <trireme/comm/world.h>

#include "tests/support/gate.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <future>
#include <stdexcept>

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> run(int ranks, int hosts, const std::function<void(World&)>& body) {
  test::RunOptions options;
  options.hosts = hosts;
  return test::run_ranks(ranks, body, options);
}

TEST(HostBlocksTest, FindsEqualNeighbours) {
  const auto blocks = host_blocks({3, 3, 1, 1, 7, 7});
  ASSERT_TRUE(blocks);
  EXPECT_EQ(blocks->hosts, 3);
  EXPECT_EQ(blocks->per_host, 2);
  EXPECT_EQ(host_blocks({0, 0, 0})->hosts, 1);
  EXPECT_EQ(host_blocks({0, 1, 2})->per_host, 1);
}

TEST(HostBlocksTest, KnowsNoneWhereHostsAlternateOrDiffer) {
  EXPECT_FALSE(host_blocks({0, 1, 0, 1}));
  EXPECT_FALSE(host_blocks({0, 0, 1}));
  EXPECT_FALSE(host_blocks({0, 1, 1}));
  EXPECT_FALSE(host_blocks({0, 0, 1, 1, 0, 0}));
  EXPECT_FALSE(host_blocks({}));
}

TEST(TaskThreadTest, OneErrorEndsAllThatFollow) {
  TaskThread thread([] {});
  int done = 0;
  auto first = thread.run([&] { ++done; });
  auto second = thread.run([] { throw std::runtime_error("link down"); });
  auto third = thread.run([&] { ++done; });
  first->wait();
  EXPECT_THROW(second->wait(), std::runtime_error);
  EXPECT_THROW(third->wait(), std::runtime_error);
  EXPECT_THROW(third->wait(), std::runtime_error);
  EXPECT_TRUE(third->done());
  EXPECT_EQ(done, 1);
}

TEST(TaskThreadTest, AnExceptionThatDropsAnOperationInterruptsIt) {
  std::promise<void> interrupted;
  auto noticed = interrupted.get_future();
  bool in_time = false;
  TaskThread thread([&] { interrupted.set_value(); });
  try {
    const auto work =
        thread.run([&] { in_time = noticed.wait_for(std::chrono::seconds(20)) == std::future_status::ready; });
    throw std::runtime_error("of the program's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(in_time);
}

TEST(HierarchyTest, EveryGroupGetsWhatSuitsItsHosts) {
  EXPECT_THAT(run(4, 2,
                  [](World& world) {
                    EXPECT_STREQ(world.group().backend(), "shm+gloo");
                    const Group here = world.subgroup({0, 1}, "low");
                    const Group there = world.subgroup({2, 3}, "high");
                    const Group across = world.subgroup({0, 2}, "across");
                    const Group uneven = world.subgroup({0, 1, 2}, "uneven");
                    EXPECT_STREQ((world.rank() < 2 ? here : there).backend(), "shm");
                    if (world.rank() % 2 == 0) {
                      EXPECT_STREQ(across.backend(), "gloo");
                    }
                    if (world.rank() != 3) {
                      EXPECT_STREQ(uneven.backend(), "gloo");
                    }
                    EXPECT_EQ(world.local_size(), 2);
                  }),
              IsEmpty());
}

TEST(HierarchyTest, LargeAndOddTensorsAddUpWithTheSameBitsEverywhere) {
  EXPECT_THAT(run(6, 2,
                  [](World& world) {
                    const Group& group = world.group();
                    // One element, an odd number, several chunks with a rest.
                    for (const int64_t numel : {1, 4099, 20'001, 2'500'007}) {
                      const auto value = [&](int rank) {
                        return (torch::arange(numel, torch::kFloat64) * (rank + 1.3)).sin();
                      };
                      auto wanted = torch::zeros({numel}, torch::kFloat64);
                      for (int rank = 0; rank < group.size(); ++rank) {
                        wanted += value(rank);
                      }
                      auto tensor = group.allocate(numel, torch::kFloat32);
                      tensor.copy_(value(group.rank()));
                      group.all_reduce(tensor).wait();
                      EXPECT_TRUE(torch::allclose(tensor.to(torch::kFloat64), wanted, 1e-5, 1e-5)) << numel;
                      auto first = tensor.clone();
                      group.broadcast(first, 0).wait();
                      EXPECT_TRUE(torch::equal(first, tensor)) << numel;
                    }
                  }),
              IsEmpty());
}

TEST(HierarchyTest, MessagesTakeTheShortWay) {
  EXPECT_THAT(run(4, 2,
                  [](World& world) {
                    const Group& group = world.group();
                    for (const int step : {1, 2, 3}) {
                      const int to = (group.rank() + step) % 4;
                      const int from = (group.rank() + 4 - step) % 4;
                      auto out = torch::full({70'000}, group.rank(), torch::kFloat32);
                      auto in = torch::zeros({70'000});
                      auto sent = group.send(out, to, step);
                      group.recv(in, from, step).wait();
                      sent.wait();
                      EXPECT_TRUE(torch::equal(in, torch::full({70'000}, from, torch::kFloat32)));
                    }
                  }),
              IsEmpty());
}

/// The closed form: 2P(L-1)/L through memory (two halves of an all-reduce) and 2(P/L)(H-1)/H over the link.
TEST(HierarchyTest, CountsTheBytesOfBothLevels) {
  EXPECT_THAT(run(4, 2,
                  [](World& world) {
                    const Group& group = world.group();
                    auto tensor = torch::ones({1 << 20});
                    const int64_t before = group.bytes_sent();
                    group.all_reduce(tensor).wait();
                    EXPECT_EQ(group.bytes_sent() - before, (4 << 20) + (2 << 20));
                  }),
              IsEmpty());
}

TEST(HierarchyTest, ALostRankIsNamedOnEveryHost) {
  test::Gate waiting;
  const auto lines = run(4, 2, [&](World& world) {
    auto tensor = torch::ones({300'000});
    world.group().all_reduce(tensor).wait();
    if (world.rank() == 3) {
      waiting.wait(3);
      raise(SIGKILL);
    }
    waiting.open();
    const std::string error = test::peer_error([&] {
      for (;;) {
        world.group().all_reduce(tensor, ReduceOp::sum, "bucket").wait();
      }
    });
    EXPECT_THAT(error, AllOf(HasSubstr("(\"bucket\""), HasSubstr("rank 3")));
  });
  EXPECT_THAT(lines, ElementsAre("rank 3: ended by signal 9 (Killed)"));
}

} // namespace
} // namespace trireme::comm
