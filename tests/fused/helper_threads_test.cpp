#include <trireme/fused/helper_threads.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace trireme::fused {
namespace {

using testing::Each;

// How often each part is done.
class Counters {
 public:
  explicit Counters(int64_t parts) : counts_(static_cast<size_t>(parts)) {}
  void add(int64_t part) { ++counts_.at(static_cast<size_t>(part)); }
  std::vector<int> read() const { return {counts_.begin(), counts_.end()}; }

 private:
  std::vector<std::atomic<int>> counts_;
};

TEST(HelperThreadsTest, EachPartIsDoneOnce) {
  HelperThreads threads;
  for (int round = 0; round < 3000; ++round) {
    const int64_t parts = round % 37;
    Counters done(parts);
    threads.run(parts, 1 + round % 4, [&](int64_t part) { done.add(part); });
    ASSERT_THAT(done.read(), Each(1)) << "round " << round;
  }
  EXPECT_THROW(threads.run(1 << 16, 2, [](int64_t) {}), Error);
}

std::atomic<bool> is_held{false}, may_go{false};

void hold(int) {
  is_held = true;
  while (!may_go) {
    sched_yield();
  }
}

// A thread that the system does not run, as on a busy machine, or after fork().
TEST(HelperThreadsTest, ACallerDoesNotWaitForAHelperThatHasBegunNothing) {
  HelperThreads threads;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> came{false};
  pthread_t helper{};
  threads.run(2, 2, [&](int64_t) { // each of the two has one of the parts
    if (std::this_thread::get_id() != caller) {
      helper = pthread_self();
      came = true;
    }
    while (!came) {
      std::this_thread::yield();
    }
  });
  struct sigaction action{};
  action.sa_handler = hold;
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  ASSERT_EQ(pthread_kill(helper, SIGUSR1), 0);
  while (!is_held) {
    std::this_thread::yield();
  }
  for (int round = 0; round < 10; ++round) {
    Counters done(100);
    threads.run(100, 2, [&](int64_t part) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      done.add(part);
    });
    EXPECT_THAT(done.read(), Each(1));
  }
  may_go = true;
  came = false;
  threads.run(2, 2, [&](int64_t) { // it helps again
    came = came || std::this_thread::get_id() != caller;
    while (!came) {
      std::this_thread::yield();
    }
  });
}

// Neighbours in memory stay with one thread, whose processor reads ahead; what is left is taken from the other end.
TEST(HelperThreadsTest, EachThreadGoesThroughItsOwnRangeInOrder) {
  HelperThreads threads;
  std::vector<std::thread::id> by(100);
  std::atomic<int64_t> next{0};
  std::vector<int64_t> order(100);
  std::atomic<int> begun{0};
  threads.run(100, 2, [&](int64_t part) {
    if (part == 0 || part == 50) { // neither goes on alone
      ++begun;
      while (begun < 2) {
        std::this_thread::yield();
      }
    }
    by[static_cast<size_t>(part)] = std::this_thread::get_id();
    order[static_cast<size_t>(next++)] = part;
  });
  EXPECT_EQ(by[0], std::this_thread::get_id());
  EXPECT_NE(by[50], std::this_thread::get_id());
  for (const auto& thread : {by[0], by[50]}) {
    std::vector<int64_t> own, others;
    for (const int64_t part : order) {
      if (by[static_cast<size_t>(part)] == thread) {
        ((part < 50) == (thread == by[0]) ? own : others).push_back(part);
      }
    }
    EXPECT_TRUE(std::ranges::is_sorted(own));
    EXPECT_TRUE(std::ranges::is_sorted(others, std::greater()));
  }
}

TEST(HelperThreadsTest, WhoFindsTheHelpersTakenWorksAlone) {
  HelperThreads threads;
  int inner = 0; // no other thread counts
  std::atomic<int> outer{0};
  threads.run(4, 3, [&](int64_t part) {
    ++outer;
    if (part == 2) {
      threads.run(5, 3, [&](int64_t) { ++inner; });
    }
  });
  EXPECT_EQ(inner, 5);
  EXPECT_EQ(outer, 4);
}

TEST(HelperThreadsTest, TheFirstExceptionReachesTheCaller) {
  HelperThreads threads;
  for (int round = 0; round < 100; ++round) {
    EXPECT_THROW(threads.run(8, 2,
                             [](int64_t part) {
                               if (part >= 3) {
                                 throw std::runtime_error("part");
                               }
                             }),
                 std::runtime_error);
  }
  std::atomic<int> done{0};
  threads.run(8, 2, [&](int64_t) { ++done; });
  EXPECT_EQ(done, 8);
}

} // namespace
} // namespace trireme::fused
