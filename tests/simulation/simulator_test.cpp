#include <tests/simulation/schedules.h>
#include <tests/simulation/simulated_store.h>
#include <tests/simulation/simulator.h>

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace trireme::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SimulatorTest, SleepersWakeInTheOrderOfTheirTimes) {
  Simulator simulator(1);
  std::vector<int> order;
  for (const int s : {3, 1, 2}) {
    simulator.start("sleeper", [&order, s] {
      sleep_for(seconds(s));
      order.push_back(s);
    });
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(simulator.run(seconds(10)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(1));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(SimulatorTest, WhoWaitsForEverIsSeen) {
  Simulator simulator(1);
  simulator.start("waits", [&] { simulator.block_until(Clock::time_point::max(), [] { return false; }); });
  EXPECT_FALSE(simulator.run(seconds(10)));
}

TEST(SimulatorTest, AKilledProcessIsUnwoundAndHasNoEffectAnyMore) {
  Simulator simulator(1);
  bool unwound = false;
  bool went_on = false;
  struct Unwound {
    bool& flag;
    ~Unwound() { flag = true; }
  };
  const int process = simulator.start("victim", [&] {
    const Unwound guard{unwound};
    sleep_for(seconds(5));
    went_on = true;
  });
  simulator.after(seconds(1), [&] { simulator.kill(process); });
  EXPECT_TRUE(simulator.run(seconds(10)));
  EXPECT_TRUE(unwound);
  EXPECT_FALSE(went_on);
  EXPECT_EQ(simulator.end_of(process), "killed");
}

TEST(SimulatorTest, AProcessThatIsKilledWhileItHandlesAnErrorLeavesOthersTheirs) {
  Simulator simulator(1);
  std::string seen;
  const int first = simulator.start("first", [] {
    try {
      throw Error("test", "of the first");
    } catch (const Error&) {
      sleep_for(seconds(2));
      throw;
    }
  });
  const int second = simulator.start("second", [&] {
    try {
      throw Error("test", "of the second");
    } catch (const Error&) {
      sleep_for(seconds(1));
      try {
        throw;
      } catch (const Error& error) {
        seen = error.what();
      }
    }
  });
  EXPECT_TRUE(simulator.run(seconds(10)));
  EXPECT_NE(seen.find("of the second"), std::string::npos);
  EXPECT_NE(simulator.end_of(first).find("of the first"), std::string::npos);
  EXPECT_EQ(simulator.end_of(second), "");
}

TEST(SimulatorTest, AStoppedProcessGoesOnLater) {
  Simulator simulator(1);
  Clock::time_point woke;
  const int process = simulator.start("stopped", [&] {
    sleep_for(seconds(2));
    woke = Clock::now();
  });
  const Clock::time_point start = simulator.now();
  simulator.after(seconds(1), [&] { simulator.pause(process); });
  simulator.after(seconds(5), [&] { simulator.go_on(process); });
  EXPECT_TRUE(simulator.run(seconds(10)));
  EXPECT_GE(woke - start, seconds(5));
}

std::string story_of(uint64_t seed) {
  Simulator simulator(seed);
  SimulatedStore store(simulator);
  for (int i = 0; i < 4; ++i) {
    simulator.start("process " + std::to_string(i), [&, i] {
      const auto client = store.connect();
      simulator.note(std::to_string(i) + " has " + std::to_string(client->add("number", 1)));
      client->set("there/" + std::to_string(i), "1");
      client->wait({"there/0", "there/1", "there/2", "there/3"}, seconds(20));
      simulator.note(std::to_string(i) + " goes on");
    });
  }
  EXPECT_TRUE(simulator.run(seconds(60)));
  return simulator.story();
}

TEST(SimulatorTest, ASeedRepeatsAScheduleAndAnotherSeedIsAnother) {
  EXPECT_EQ(story_of(1), story_of(1));
  std::set<std::string> stories;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    stories.insert(story_of(seed));
  }
  EXPECT_EQ(stories.size(), 20u);
}

TEST(SimulatedStoreTest, CarriesOutTheLastWillOfAKilledProcess) {
  run_schedules(200, [](Simulator& simulator) {
    SimulatedStore store(simulator);
    const int victim = simulator.start("victim", [&] {
      const auto client = store.connect();
      client->last_will("gone", "yes", "counter");
      client->set("ready", "1");
      client->wait({"never"}, seconds(1000));
    });
    bool seen = false;
    simulator.start("watches", [&] {
      const auto client = store.connect();
      client->wait({"ready"}, seconds(20));
      simulator.kill(victim);
      seen = client->wait({"gone"}, seconds(20)) && client->find("counter") == "1";
    });
    if (!simulator.run(seconds(60)) || !seen) {
      simulator.violate("the last will has not been executed");
    }
  });
}

TEST(SimulatedStoreTest, AnswersAWaitWhenItsTimeIsOver) {
  Simulator simulator(1);
  SimulatedStore store(simulator);
  bool there = true;
  Clock::duration waited{};
  simulator.start("waits", [&] {
    const auto client = store.connect();
    const auto start = Clock::now();
    there = client->wait({"never"}, seconds(3));
    waited = Clock::now() - start;
  });
  EXPECT_TRUE(simulator.run(seconds(60)));
  EXPECT_FALSE(there);
  EXPECT_GE(waited, seconds(3));
  EXPECT_LT(waited, seconds(4));
}

// A kill at each of a process's calls, before and after what it sends has left.
TEST(SimulatedStoreTest, AProcessCanBeKilledAtEachOfItsCalls) {
  std::set<std::string> numbers;
  for (int64_t call = 0; call < 4; ++call) {
    for (const bool after : {false, true}) {
      Simulator simulator(static_cast<uint64_t>(call + 1));
      SimulatedStore store(simulator);
      const int victim = simulator.start("victim", [&] {
        const auto client = store.connect();
        for (int i = 0; i < 3; ++i) {
          client->add("number", 1);
        }
      });
      simulator.kill_at_call(victim, call, after);
      EXPECT_TRUE(simulator.run(seconds(60)));
      const std::string* const number = store.table().find("number");
      numbers.insert(number == nullptr ? "none" : *number);
    }
  }
  EXPECT_GE(numbers.size(), 3u);
}

} // namespace
} // namespace trireme::simulation
