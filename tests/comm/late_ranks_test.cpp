// A rank that is late and lives is waited for; one that has ended, is stopped, or waits itself is not.
#include <trireme/base/env.h>
#include <trireme/base/file.h>
#include <trireme/base/notes.h>
#include <trireme/comm/world.h>

#include "tests/support/gate.h"
#include "tests/support/peer_error.h"
#include "tests/support/run_ranks.h"

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

namespace trireme::comm {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Gate;
using test::peer_error;
using test::run_processes;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Clock = std::chrono::steady_clock;

/// What a rank sees of the time-outs, in seconds; "": unset.
struct Limits {
  std::string warn_after = "1";
  std::string timeout;
};

class LateRanksTest : public testing::TestWithParam<const char*> {
 protected:
  LateRanksTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_late_", getpid(), "_", GetParam())) {
    fs::create_directories(folder_);
    memory_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
  ~LateRanksTest() override {
    munmap(memory_, 4096);
    fs::remove_all(folder_);
  }

  /// Ranks whose stderr goes to one file. All must have ended within half a minute.
  std::vector<std::string> run(int ranks, const std::function<void(World&)>& body, const Limits& limits = {},
                               milliseconds deadline = seconds(30)) {
    test::RunOptions options;
    options.backend = GetParam();
    options.deadline = deadline;
    return run_processes(
        ranks,
        [&](int) {
          const int out = open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
          dup2(out, STDERR_FILENO);
          close(out);
          setenv("TRIREME_RUN_DIR", folder_.c_str(), 1);
          const auto set = [](const char* name, const std::string& value) {
            value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
          };
          set("TRIREME_WARN_AFTER", limits.warn_after);
          set("TRIREME_TIMEOUT", limits.timeout);
          World world = World::connect();
          body(world);
        },
        options);
  }

  std::string printed() const { return fs::exists(folder_ / "stderr") ? read_file(folder_ / "stderr") : ""; }
  int count(const std::string& what) const {
    const std::string text = printed();
    int found = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
      ++found;
    }
    return found;
  }

  fs::path folder_;
  void* memory_;
};

INSTANTIATE_TEST_SUITE_P(Backends, LateRanksTest, testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

// README's pattern: rank 0 evaluates, the others wait for it at the next collective.
void evaluate_on_rank_0(World& world, seconds evaluation) {
  auto loss = torch::ones({1});
  world.group().all_reduce(loss, ReduceOp::sum, "loss").wait();
  if (world.rank() == 0) {
    const Note note("evaluation");
    std::this_thread::sleep_for(evaluation);
  }
  auto bucket = torch::ones({250});
  world.group().all_reduce(bucket, ReduceOp::sum, "bucket 3").wait();
  EXPECT_EQ(bucket.sum().item<float>(), 250.0F * static_cast<float>(world.size()));
}

TEST_P(LateRanksTest, ALateRankIsWaitedForAndNamedOnce) {
  EXPECT_THAT(run(3, [](World& world) { evaluate_on_rank_0(world, seconds(5)); }), IsEmpty());
  EXPECT_EQ(count("is late"), 1) << printed();
  EXPECT_THAT(printed(),
              AllOf(HasSubstr("all_reduce #2 (\"bucket 3\", 1.00 kB) in group \"world\" is not done after 1."),
                    HasSubstr("it waits for rank 0, which is late"), HasSubstr("rank 0 is in evaluation, for "),
                    HasSubstr("it last did all_reduce #1 (\"loss\", 4 B)"), HasSubstr("30 min"),
                    HasSubstr("TRIREME_TIMEOUT="), HasSubstr("TRIREME_WARN_AFTER=")));
  EXPECT_THAT(printed(), Not(HasSubstr("hang report")));
}

TEST_P(LateRanksTest, EachLateEvaluationIsNamed) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    evaluate_on_rank_0(world, seconds(3));
                    evaluate_on_rank_0(world, seconds(3));
                  }),
              IsEmpty());
  EXPECT_EQ(count("is late"), 2) << printed();
}

// One thread waits for long, while another one's waits in the same group come and go.
TEST_P(LateRanksTest, EachThreadThatWaitsIsSeen) {
  constexpr int kLong = 7, kShort = 1;
  EXPECT_THAT(run(2,
                  [](World& world) {
                    auto late = torch::ones({4}), often = torch::ones({4});
                    if (world.rank() == 1) {
                      for (int i = 0; i < 30; ++i) {
                        std::this_thread::sleep_for(milliseconds(100));
                        world.group().send(often, 0, kShort).wait();
                      }
                      world.group().send(late, 0, kLong).wait();
                      return;
                    }
                    auto expected = world.group().recv(late, 1, kLong, "the late one");
                    std::thread waits([&] { expected.wait(); });
                    for (int i = 0; i < 30; ++i) {
                      world.group().recv(often, 1, kShort).wait();
                    }
                    waits.join();
                  }),
              IsEmpty());
  EXPECT_EQ(count("is late"), 1) << printed();
  EXPECT_THAT(printed(),
              HasSubstr("recv #1 from rank 1 (\"the late one\", 16 B) in group \"world\" is not done after 1."));
}

TEST_P(LateRanksTest, LongAnEvaluationMayTakeLongerThanAMinute) {
  if (!env::flag("TRIREME_LONG_TESTS")) {
    GTEST_SKIP() << "takes a minute; set TRIREME_LONG_TESTS=1";
  }
  EXPECT_THAT(run(
                  2, [](World& world) { evaluate_on_rank_0(world, seconds(70)); }, {.warn_after = "", .timeout = ""},
                  seconds(100)),
              IsEmpty());
  EXPECT_EQ(count("is late"), 1) << printed();
}

TEST_P(LateRanksTest, ARankMayComeLateToANewGroup) {
  EXPECT_THAT(run(3,
                  [](World& world) {
                    if (world.rank() == 0) {
                      const Note note("evaluation");
                      std::this_thread::sleep_for(seconds(4));
                    }
                    const Group again = world.subgroup({0, 1, 2}, "again");
                    auto ones = torch::ones({4});
                    again.all_reduce(ones).wait();
                    EXPECT_EQ(ones.sum().item<float>(), 12.0F);
                  }),
              IsEmpty());
  EXPECT_EQ(count("is late"), 1) << printed();
  EXPECT_THAT(printed(),
              AllOf(HasSubstr("in group \"again\" is not done after 1."), HasSubstr("rank 0 is in evaluation")));
}

TEST_P(LateRanksTest, ARankMayEndLate) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    world.group().barrier().wait();
                    if (world.rank() == 1) {
                      const Note note("evaluation");
                      std::this_thread::sleep_for(seconds(6));
                    }
                  }),
              IsEmpty());
  EXPECT_THAT(printed(),
              HasSubstr("rank 0 has ended its work and waits for rank 1 to end too (rank 1 is in evaluation"));
}

TEST_P(LateRanksTest, AGroupThatADeadlockKeepsFromOpeningSaysWhatTheOtherRankDoes) {
  Gate told;
  EXPECT_THAT(run(2,
                  [&](World& world) {
                    if (world.rank() == 0) {
                      EXPECT_THAT(peer_error([&] { world.subgroup({0, 1}, "pair"); }),
                                  AllOf(HasSubstr("group \"pair\" is not open after"),
                                        AnyOf(HasSubstr("rank 1 has not come: it waits"),
                                              HasSubstr("rank 1 has given up: [comm] all_reduce #1"),
                                              HasSubstr("rank 1 has ended with an error: [comm] all_reduce #1")),
                                        HasSubstr("group \"world\"")));
                      told.open();
                    } else {
                      const auto ones = torch::ones({4});
                      EXPECT_THAT(peer_error([&] { world.group().all_reduce(ones).wait(); }), HasSubstr("rank 0"));
                      told.wait();
                    }
                  }),
              IsEmpty());
}

// A launcher shows what rank 0 writes: a late rank's own log is not read by anybody.
TEST_P(LateRanksTest, WhoWaitsForALateEndSaysSoAndNotTheLateRank) {
  const auto body = [](World& world) {
    world.group().barrier().wait();
    std::this_thread::sleep_for(seconds(world.rank() == 1 ? 10 : 0));
  };
  EXPECT_THAT(run(3, body, {.warn_after = "6", .timeout = ""}), IsEmpty()); // they have asked twice by then
  EXPECT_THAT(printed(), AllOf(HasSubstr("[rank 0] warning: rank "), HasSubstr("waits for rank 1 to end too"),
                               HasSubstr("Look at the output of rank 1")));
}

TEST_P(LateRanksTest, ARankThatIsStoppedAtTheEndIsSaid) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    world.group().barrier().wait();
                    if (world.rank() == 1) {
                      std::this_thread::sleep_for(seconds(1)); // its thread has said which process it is
                      const pid_t self = getpid();
                      if (fork() == 0) {
                        std::this_thread::sleep_for(seconds(12));
                        kill(self, SIGCONT);
                        _exit(0);
                      }
                      raise(SIGSTOP);
                    }
                  }),
              IsEmpty());
  EXPECT_THAT(printed(), AllOf(HasSubstr("[rank 0] warning: rank 1 does not answer: its process"),
                               HasSubstr("; rank 0 ends without it")));
}

TEST_P(LateRanksTest, WithATimeOutAnOperationEndsThereAndNotBefore) {
  Gate told;
  EXPECT_THAT(run(2,
                  [&](World& world) {
                    auto ones = torch::ones({4});
                    if (world.rank() == 0) {
                      told.wait();
                      return;
                    }
                    const auto begin = Clock::now();
                    EXPECT_THAT(peer_error([&] { world.group().all_reduce(ones).wait(); }),
                                AllOf(HasSubstr("is not done after 4.00 s"), HasSubstr("rank 0 has not come")));
                    EXPECT_GE(Clock::now() - begin, seconds(4));
                    told.open();
                  },
                  {.timeout = "4"}),
              IsEmpty());
  EXPECT_EQ(count("is late"), 1) << printed();
  EXPECT_THAT(printed(), HasSubstr("4.00 s have passed"));
}

TEST_P(LateRanksTest, WithATimeOutADeadlockEndsThereToo) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    const auto begin = Clock::now();
                    auto ones = torch::ones({4});
                    peer_error([&] { world.group().recv(ones, 1 - world.rank()).wait(); });
                    EXPECT_GE(Clock::now() - begin, seconds(4));
                  },
                  {.timeout = "4"}),
              IsEmpty());
  EXPECT_THAT(printed(), Not(HasSubstr("is late")));
}

TEST_P(LateRanksTest, RanksThatWaitForEachOtherEndSoon) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    const Group one = world.subgroup({0, 1}, "one");
                    const Group two = world.subgroup({0, 1}, "two");
                    const Group& own = world.rank() == 0 ? one : two;
                    auto ones = torch::ones({4});
                    EXPECT_THAT(peer_error([&] { own.all_reduce(ones, ReduceOp::sum, "x").wait(); }),
                                AllOf(HasSubstr(concat("rank ", 1 - world.rank())),
                                      HasSubstr("operations of all groups in the same order")));
                  }),
              IsEmpty());
  EXPECT_THAT(printed(), AllOf(HasSubstr("wait for each other"), HasSubstr("hang report"), Not(HasSubstr("is late"))));
}

TEST_P(LateRanksTest, AStoppedRankIsNotWaitedFor) {
  auto* stopped = static_cast<std::atomic<pid_t>*>(memory_);
  const auto lines = run(3, [&](World& world) {
    auto ones = torch::ones({4});
    world.group().all_reduce(ones).wait();
    if (world.rank() == 1) {
      *stopped = getpid();
      std::this_thread::sleep_for(seconds(2)); // its thread has said which process it is
      raise(SIGSTOP);
    }
    EXPECT_THAT(peer_error([&] { world.group().all_reduce(ones).wait(); }), HasSubstr("rank 1"));
    if (world.rank() == 2) {
      world.close();
      kill(*stopped, SIGKILL);
    }
  });
  EXPECT_THAT(lines, ElementsAre("rank 1: ended by signal 9 (Killed)"));
  EXPECT_THAT(printed(), AllOf(HasSubstr("hang report"), HasSubstr("rank 1 does not answer: its process"),
                               HasSubstr("is stopped (state T")));
}

// Late at first, and stopped while it is waited for.
TEST_P(LateRanksTest, ALateRankIsLookedAtAgain) {
  auto* stopped = static_cast<std::atomic<pid_t>*>(memory_);
  const auto lines = run(2, [&](World& world) {
    auto ones = torch::ones({4});
    if (world.rank() == 1) {
      *stopped = getpid();
      std::this_thread::sleep_for(milliseconds(3500));
      raise(SIGSTOP);
    }
    EXPECT_THAT(peer_error([&] { world.group().all_reduce(ones).wait(); }), HasSubstr("rank 1"));
    kill(*stopped, SIGKILL);
  });
  EXPECT_THAT(lines, ElementsAre("rank 1: ended by signal 9 (Killed)"));
  EXPECT_EQ(count("is late"), 1) << printed();
}

TEST_P(LateRanksTest, ARankThatHasFinishedHasEnded) {
  for (const int first : {0, 1}) {
    EXPECT_THAT(run(2,
                    [&](World& world) {
                      auto ones = torch::ones({4});
                      world.group().all_reduce(ones, ReduceOp::sum, "a").wait();
                      if (world.rank() != first) {
                        EXPECT_THAT(peer_error([&] { world.group().all_reduce(ones, ReduceOp::sum, "b").wait(); }),
                                    AllOf(HasSubstr(concat("rank ", first, " has ended without an error")),
                                          HasSubstr("same number of steps"), Not(HasSubstr("not answer"))));
                      }
                    }),
                IsEmpty());
  }
  EXPECT_THAT(printed(), AllOf(HasSubstr("rank 0 has ended"), HasSubstr("rank 1 has ended"), Not(HasSubstr("is late")),
                               Not(HasSubstr("not answer"))));
}

// The host of the rendezvous does not wait for ever, and takes it along.
TEST_P(LateRanksTest, TheHostOfTheMeetingPointHasEnded) {
  EXPECT_THAT(run(2,
                  [](World& world) {
                    world.group().barrier().wait();
                    if (world.rank() == 1) {
                      std::this_thread::sleep_for(milliseconds(2500));
                      auto ones = torch::ones({4});
                      EXPECT_THAT(peer_error([&] { world.group().all_reduce(ones).wait(); }),
                                  AllOf(HasSubstr("rank 0"), HasSubstr("has ended"), Not(HasSubstr("not answer"))));
                    }
                  },
                  {.warn_after = "", .timeout = "4"}),
              IsEmpty());
}

TEST_P(LateRanksTest, ARankThatEndsWithoutAWordHasEnded) {
  const auto lines = run(2, [](World& world) {
    auto ones = torch::ones({4});
    world.group().all_reduce(ones, ReduceOp::sum, "a").wait();
    usleep(600'000); // some ticks of the watches, which have to see each other
    if (world.rank() == 1) {
      _exit(0);
    }
    EXPECT_THAT(peer_error([&] { world.group().all_reduce(ones, ReduceOp::sum, "b").wait(); }),
                AllOf(HasSubstr("rank 1 has ended without closing its world"), HasSubstr("exit()"),
                      Not(HasSubstr("not answer"))));
  });
  EXPECT_THAT(lines, ElementsAre("rank 1: exit code 0"));
}

TEST(WarnAfterTest, MustBeANumberOfSeconds) {
  const auto lines = run_processes(1, [](int) {
    setenv("TRIREME_WARN_AFTER", "soon", 1);
    EXPECT_THAT(test::error_of([] { World::connect(); }),
                HasSubstr("TRIREME_WARN_AFTER must be a number of seconds above 0, it is \"soon\""));
  });
  EXPECT_THAT(lines, IsEmpty());
}

} // namespace
} // namespace trireme::comm
