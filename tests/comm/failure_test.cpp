#include <trireme/base/env.h>
#include <trireme/base/file.h>
#include <trireme/comm/recorder.h>
#include <trireme/comm/world.h>

#include "tests/support/gate.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace trireme::comm {
namespace {

using test::error_of;
using test::Gate;
using test::on_ranks;
using test::peer_error;
using test::run_processes;
using test::run_ranks;
using test::RunOptions;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Of a rank that was killed: whether it has told its process number before is a matter of time.
const auto kGone = AnyOf(HasSubstr("not answer any more"), HasSubstr("has ended without closing its world"));

class TimeoutTest : public testing::TestWithParam<const char*> {};
class LostPeerTest : public testing::TestWithParam<const char*> {};
class MismatchTest : public testing::TestWithParam<const char*> {};

RunOptions over(const std::string& backend) {
  RunOptions options;
  options.backend = backend;
  return options;
}

/// What these ranks wait for never comes: they time out.
RunOptions soon(const std::string& backend) {
  RunOptions options = over(backend);
  options.timeout = std::chrono::seconds(3);
  return options;
}

/// No operation times out before the test does: a failure that is told was noticed.
RunOptions never(const std::string& backend) {
  RunOptions options = over(backend);
  options.timeout = std::chrono::minutes(10);
  return options;
}

TEST_P(TimeoutTest, NamesTheRankThatDidNotCome) {
  Gate told;
  on_ranks(
      3,
      [&](World& world) {
        auto loss = torch::ones({1});
        world.group().all_reduce(loss, ReduceOp::sum, "loss").wait();
        if (world.rank() == 1) {
          told.wait(2);
          return;
        }
        auto bucket = torch::ones({250});
        const std::string error =
            peer_error([&] { world.group().all_reduce(bucket, ReduceOp::sum, "bucket 3").wait(); });
        EXPECT_THAT(error, AllOf(HasSubstr("[comm] all_reduce #2 (\"bucket 3\", 1.00 kB) in group \"world\""),
                                 HasSubstr(concat("on rank ", world.rank(), " of 3")),
                                 HasSubstr("rank 1 has not come (rank 1 last did all_reduce #1 (\"loss\", 4 B))"),
                                 HasSubstr("TRIREME_TIMEOUT")));
        const auto record = Recorder::process().records().back();
        EXPECT_EQ(record.state, OpState::failed);
        EXPECT_EQ(record.what, "bucket 3");
        told.open();
      },
      soon(GetParam()));
}

TEST_P(TimeoutTest, SubgroupsNameWorldRanks) {
  Gate told;
  on_ranks(
      3,
      [&](World& world) {
        const Group pair = world.subgroup({1, 2}, "pipe");
        if (world.rank() == 1) {
          auto tensor = torch::ones({4});
          EXPECT_THAT(peer_error([&] { pair.recv(tensor, 1, 0, "activations").wait(); }),
                      AllOf(HasSubstr("recv #1 from rank 2 (\"activations\", 16 B) in group \"pipe\""),
                            HasSubstr("is not done after 3.00 s on rank 1 of 3"),
                            HasSubstr("rank 2 has not come (rank 2 has done nothing in this group)")));
          told.open(2);
        } else {
          told.wait();
        }
      },
      soon(GetParam()));
}

// As a mesh within a pipeline's stage has them: rank 0 knows nothing of the group that is late.
TEST_P(TimeoutTest, AGroupOfAGroupNamesWorldRanks) {
  Gate told;
  on_ranks(
      4,
      [&](World& world) {
        const Group stage = world.group().subgroup({3, 2, 1}, "stage");
        if (world.rank() == 0) {
          EXPECT_EQ(stage.size(), 1);
          EXPECT_EQ(stage.subgroup({0}, "tensor").size(), 1);
          EXPECT_THAT(error_of([&] { stage.subgroup({0, 1}, "tensor"); }),
                      HasSubstr("different ranks between 0 and 0"));
          return told.wait();
        }
        const Group pair = stage.subgroup({1, 0}, "tensor"); // world ranks 2 and 3
        EXPECT_EQ(pair.members(), world.rank() == 1 ? std::vector<int>{1} : std::vector<int>({2, 3}));
        if (world.rank() != 2) {
          return told.wait();
        }
        auto tensor = torch::ones({4});
        EXPECT_THAT(peer_error([&] { pair.all_reduce(tensor, ReduceOp::sum, "columns").wait(); }),
                    AllOf(HasSubstr("all_reduce #1 (\"columns\", 16 B) in group \"tensor\""),
                          HasSubstr("is not done after 3.00 s on rank 2 of 4"),
                          HasSubstr("rank 3 has not come (rank 3 has done nothing in this group)")));
        told.open(3);
      },
      soon(GetParam()));
}

TEST_P(TimeoutTest, ASkippedCollectiveIsSeenAtTheEnd) {
  on_ranks(
      2,
      [](World& world) {
        auto tensor = torch::ones({8});
        world.group().all_reduce(tensor, ReduceOp::sum, "a").wait();
        if (world.rank() == 0) {
          EXPECT_THAT(peer_error([&] { world.group().all_reduce(tensor, ReduceOp::sum, "b").wait(); }),
                      AllOf(HasSubstr("all_reduce #2 (\"b\""),
                            HasSubstr("rank 1 has ended without an error (rank 1 last did all_reduce #1 (\"a\"")));
        }
      },
      soon(GetParam()));
}

TEST_P(TimeoutTest, TheGroupStaysBrokenAndSaysWhy) {
  Gate told;
  on_ranks(
      2,
      [&](World& world) {
        auto tensor = torch::ones({8});
        if (world.rank() == 0) {
          auto first = world.group().all_reduce(tensor, ReduceOp::sum, "first");
          auto second = world.group().all_reduce(tensor, ReduceOp::sum, "second");
          EXPECT_THAT(peer_error([&] { first.wait(); }), HasSubstr("all_reduce #1 (\"first\""));
          EXPECT_THAT(peer_error([&] { second.wait(); }),
                      AllOf(HasSubstr("all_reduce #2 (\"second\""), HasSubstr("as an operation before it")));
          EXPECT_THAT(peer_error([&] { world.group().barrier(); }), HasSubstr("the group has failed before"));
          told.open();
        } else {
          told.wait();
        }
      },
      soon(GetParam()));
}

TEST_P(LostPeerTest, AKilledRankIsNoticedAndNamed) {
  for (int victim = 0; victim < 3; ++victim) {
    const auto lines = run_ranks(
        3,
        [victim](World& world) {
          auto tensor = torch::ones({1000});
          world.group().all_reduce(tensor, ReduceOp::sum, "warm").wait();
          if (world.rank() == victim) {
            raise(SIGKILL);
          }
          const std::string error = peer_error([&] {
            for (int step = 0; step < 100; ++step) {
              world.group().all_reduce(tensor, ReduceOp::sum, "bucket").wait();
            }
          });
          EXPECT_THAT(error, AllOf(HasSubstr("all_reduce #2 (\"bucket\", 4.00 kB) in group \"world\" failed on rank"),
                                   HasSubstr(concat("rank ", victim)), kGone));
        },
        never(GetParam()));
    EXPECT_THAT(lines, ElementsAre(concat("rank ", victim, ": ended by signal 9 (Killed)")));
  }
}

TEST_P(LostPeerTest, AKilledRankEndsAPipelinesReceive) {
  Gate waiting;
  const auto lines = run_ranks(
      3,
      [&](World& world) {
        auto tensor = torch::ones({1000});
        if (world.rank() == 2) {
          waiting.wait(2);
          raise(SIGKILL);
        }
        waiting.open();
        // Rank 0 waits for rank 1, which waits for rank 2: both have to learn it.
        const std::string error =
            peer_error([&] { world.group().recv(tensor, world.rank() + 1, 0, "activations").wait(); });
        EXPECT_THAT(error, AllOf(HasSubstr("recv #1 from rank"), HasSubstr("rank 2"), kGone));
      },
      over(GetParam()));
  EXPECT_THAT(lines, ElementsAre("rank 2: ended by signal 9 (Killed)"));
}

TEST_P(LostPeerTest, AStoppedRankIsNamedAfterTheTimeout) {
  // Shared with the forked ranks, so that a survivor can put the stopped one out of its misery.
  auto* stopped =
      static_cast<pid_t*>(mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(stopped, MAP_FAILED);
  for (const int victim : {0, 2}) {
    Gate told;
    const auto lines = run_ranks(
        3,
        [&told, victim, stopped](World& world) {
          auto tensor = torch::ones({1000});
          world.group().all_reduce(tensor).wait();
          if (world.rank() == victim) {
            *stopped = getpid();
            raise(SIGSTOP);
          }
          EXPECT_THAT(
              peer_error([&] { world.group().all_reduce(tensor, ReduceOp::sum, "x").wait(); }),
              AllOf(HasSubstr("all_reduce #2"), HasSubstr(concat("rank ", victim)), HasSubstr("not answer any more")));
          world.close();
          if (world.rank() == 1) {
            told.wait(); // the other survivor has had its say too
            kill(*stopped, SIGKILL);
          } else {
            told.open();
          }
        },
        soon(GetParam()));
    EXPECT_THAT(lines, ElementsAre(concat("rank ", victim, ": ended by signal 9 (Killed)")));
  }
  munmap(stopped, sizeof(pid_t));
}

// The time-out holds both ways: with TRIREME_LONG_TESTS also one beyond the 30 s that a call to the store once had of
// its own.
TEST(StoppedStoreTest, HoldsUpNobodyForLongerOrShorterThanTheTimeOut) {
  const std::chrono::seconds timeout(env::flag("TRIREME_LONG_TESTS") ? 40 : 4);
  auto* stopped = static_cast<std::atomic<pid_t>*>(
      mmap(nullptr, sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(stopped, MAP_FAILED);
  RunOptions options;
  options.timeout = timeout;
  options.deadline = timeout + std::chrono::seconds(16);
  const auto lines = run_ranks(
      2,
      [stopped, timeout](World& world) {
        world.group().barrier().wait();
        if (world.rank() == 0) {
          *stopped = getpid();
          raise(SIGSTOP);
        }
        while (*stopped == 0 ||
               read_file(concat("/proc/", stopped->load(), "/stat")).find(") T ") == std::string::npos) {
          usleep(1000);
        }
        const auto start = std::chrono::steady_clock::now();
        EXPECT_THAT(peer_error([&] { world.subgroup({0, 1}, "late"); }),
                    AllOf(HasSubstr("the rendezvous of the ranks cannot be reached any more"),
                          HasSubstr("it has not answered for"), HasSubstr("rank 0")));
        EXPECT_GE(std::chrono::steady_clock::now() - start, timeout);
        kill(*stopped, SIGKILL);
      },
      options);
  EXPECT_THAT(lines, ElementsAre("rank 0: ended by signal 9 (Killed)"));
  munmap(stopped, sizeof(std::atomic<pid_t>));
}

TEST_P(LostPeerTest, AnExceptionInOneRankEndsTheOthersWithItsName) {
  const auto lines = run_ranks(
      3,
      [](World& world) {
        auto tensor = torch::ones({1000});
        world.group().all_reduce(tensor).wait();
        if (world.rank() == 1) {
          throw InputError("data", "the file ends too early.");
        }
        EXPECT_THAT(peer_error([&] { world.group().all_reduce(tensor).wait(); }),
                    AllOf(HasSubstr("rank 1"), HasSubstr("ended with an error")));
      },
      never(GetParam()));
  EXPECT_THAT(lines, ElementsAre("rank 1: [data] the file ends too early."));
}

TEST_P(LostPeerTest, AnExceptionWhileAnOperationIsUnderWayDoesNotWaitForTheOthers) {
  // Rank 0 does something else until rank 1 is done: that has to get rid of what it has begun by itself.
  Gate ended;
  EXPECT_THAT(run_processes(
                  2,
                  [&](int rank) {
                    try {
                      World world = World::connect();
                      if (rank == 0) {
                        ended.wait();
                        EXPECT_THAT(peer_error([&] { world.group().barrier().wait(); }), HasSubstr("rank 1"));
                        return;
                      }
                      auto tensor = torch::ones({1000});
                      auto collective = world.group().all_reduce(tensor);
                      auto other = torch::ones({2});
                      auto message = world.group().recv(other, 0);
                      throw Error("test", "in between.");
                    } catch (const Error& error) {
                      EXPECT_THAT(error.what(), HasSubstr("in between"));
                      ended.open();
                    }
                  },
                  over(GetParam())),
              IsEmpty());
}

TEST_P(MismatchTest, DifferentSizesAreNamedOnBothSides) {
  const auto lines = run_ranks(
      2,
      [](World& world) {
        auto warm = torch::ones({4});
        world.group().all_reduce(warm, ReduceOp::sum, "warm").wait();
        auto tensor = torch::ones({world.rank() == 0 ? 1000 : 400});
        const std::string error = peer_error([&] {
          world.group().all_reduce(tensor, ReduceOp::sum, "bucket").wait();
          world.group().all_reduce(warm, ReduceOp::sum, "next").wait();
          world.group().all_reduce(warm, ReduceOp::sum, "next").wait();
        });
        EXPECT_THAT(error, AllOf(HasSubstr("all_reduce #2 (\"bucket\", "), HasSubstr("4.00 kB"), HasSubstr("1.60 kB")));
      },
      soon(GetParam()));
  EXPECT_THAT(lines, IsEmpty());
}

TEST_P(MismatchTest, DifferentOperationsAreNamed) {
  const auto lines = run_ranks(
      2,
      [](World& world) {
        auto tensor = torch::ones({64});
        auto whole = torch::ones({128});
        const std::string error = peer_error([&] {
          if (world.rank() == 0) {
            world.group().all_gather(whole, tensor, "parameters").wait();
          } else {
            world.group().broadcast(tensor, 1, "weights").wait();
          }
          world.group().barrier().wait();
        });
        EXPECT_THAT(error, AllOf(HasSubstr("all_gather #1 (\"parameters\", 512 B)"),
                                 HasSubstr("broadcast #1 (\"weights\", 256 B)")));
      },
      soon(GetParam()));
  EXPECT_THAT(lines, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, TimeoutTest, testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, LostPeerTest, testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, MismatchTest, testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace
} // namespace trireme::comm
