// Checkpoints that workers load: the servers have them before any gradient of a worker that has loaded them counts,
// once, whoever is lost meanwhile.
#include "hand.h"

#include <gmock/gmock.h>

#include <thread>

namespace trireme::parallel::server {
namespace {

using test::with_server;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kBoth = {ServerOptions::Mode::async, ServerOptions::Mode::sync};

void settle() { // what has been sent is there
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(ServerLoadsTest, WhoeverHasItBringsItAndTheOthersWaitForIt) {
  for (const auto kind : kBoth) {
    with_two(mode(kind), {1, 2}, [](Hand& one, Hand& two) { // the first values, at random
      const auto second = two.load("a");
      EXPECT_EQ(Hand::answer(*second).at("status"), "bring") << "it has come first";
      const auto first = one.load("a");
      settle();
      EXPECT_FALSE(first->call->done()) << "it is not there yet";
      const json set = two.set(1, {10, 20}, 40);
      EXPECT_EQ(set.at("status"), "ok");
      EXPECT_EQ(set.at("loads"), 1);
      const json known = Hand::answer(*first);
      EXPECT_EQ(known.at("status"), "ok");
      EXPECT_EQ(known.at("load").at("id"), "a");
      EXPECT_EQ(known.at("steps"), 40);
      EXPECT_EQ(known.at("step"), 20) << "of the training";
      EXPECT_THAT(one.values(), ElementsAre(10.0f, 20.0f));
    });
  }
}

TEST(ServerLoadsTest, AnotherOneIsAskedWhenTheFirstIsLost) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    auto one = std::make_unique<Hand>(address, 0);
    Hand two(address, 1);
    one->init({1, 2});
    EXPECT_EQ(Hand::answer(*one->load("a")).at("status"), "bring");
    const auto second = two.load("a");
    one.reset(); // before it has brought it
    EXPECT_EQ(Hand::answer(*second).at("status"), "bring");
    two.set(1, {10, 20}, 40);
    Hand again(address, 0, 2, {{"restarted", true}});
    EXPECT_EQ(again.joined.at("step"), 20) << "where it goes on";
    EXPECT_EQ(Hand::answer(*again.load("a")).at("status"), "ok") << "it is there: nobody brings it twice";
    EXPECT_THAT(again.values(), ElementsAre(10.0f, 20.0f));
  });
}

TEST(ServerLoadsTest, AGradientWaitsForALoadThatComesAndIsNotOfItsValues) {
  for (const auto kind : kBoth) {
    with_two(mode(kind), {1, 2}, [](Hand& one, Hand& two) {
      Hand::answer(*one.load("a"));
      const auto early = two.push_pull(0, {1, 1}); // of the first values: the load would have overwritten it
      settle();
      EXPECT_FALSE(early->call->done());
      one.set(1, {10, 20}, 40);
      EXPECT_EQ(Hand::answer(*early).at("status"), "stale");
      EXPECT_THAT(early->values(), ElementsAre(10.0f, 20.0f));
      EXPECT_EQ(one.status().at("dropped"), 1);
      EXPECT_EQ(one.status().at("accepted"), 0);
    });
  }
}

TEST(ServerLoadsTest, AGradientThatWaitedIsTakenWhenTheLoadDoesNotCome) {
  by_hand(mode(ServerOptions::Mode::async), [](const std::string& address) {
    auto one = std::make_unique<Hand>(address, 0);
    Hand two(address, 1);
    one->init({1, 2});
    Hand::answer(*one->load("a"));
    const auto early = two.push_pull(0, {1, 1});
    one.reset();
    EXPECT_EQ(Hand::answer(*early).at("status"), "accepted");
    EXPECT_THAT(early->values(), ElementsAre(0.5f, 1.5f));
  });
}

TEST(ServerLoadsTest, APushOfARoundThatALoadEndsIsDropped) {
  with_two(mode(ServerOptions::Mode::sync), {1, 2}, [](Hand& one, Hand& two) {
    const auto early = two.push(0, {1, 1});
    settle();
    Hand::answer(*one.load("a"));
    one.set(1, {10, 20}, 40);
    EXPECT_EQ(Hand::answer(*early).at("status"), "stale");
    EXPECT_THAT(early->values(), ElementsAre(10.0f, 20.0f));
    const auto first = one.push(1, {1, 0});
    const auto second = two.push(1, {1, 0});
    EXPECT_EQ(Hand::answer(*first).at("status"), "commit");
    Hand::answer(*one.commit(1, 1));
    EXPECT_EQ(Hand::answer(*second).at("steps"), 41);
    EXPECT_THAT(second->values(), ElementsAre(9.0f, 20.0f));
  });
}

TEST(ServerLoadsTest, AWorkerThatComesAgainTakesWhatTheOthersHaveMade) {
  by_hand(mode(ServerOptions::Mode::async), [](const std::string& address) {
    auto one = std::make_unique<Hand>(address, 0);
    Hand two(address, 1);
    one->init({1, 2});
    Hand::answer(*one->load("a"));
    one->set(1, {10, 20}, 40);
    Hand::answer(*one->push_pull(1, {2, 0}));
    Hand::answer(*two.load("a"));
    for (int step = 0; step < 3; ++step) {
      Hand::answer(*two.push_pull(1, {2, 0}));
    }
    one.reset();
    while (two.status().at("live") != json({1})) {
    }
    Hand again(address, 0, 2, {{"restarted", true}});
    const json known = Hand::answer(*again.load("a"));
    EXPECT_EQ(known.at("status"), "ok");
    EXPECT_EQ(known.at("steps"), 44);
    EXPECT_EQ(known.at("step"), 23) << "where the slowest of the others is";
    EXPECT_EQ(Hand::answer(*again.load("an older one")).at("status"), "ok") << "whatever it has loaded";
    EXPECT_THAT(again.values(), ElementsAre(6.0f, 20.0f));
  });
}

TEST(ServerLoadsTest, DifferentCheckpointsAreRefused) {
  by_hand(mode(ServerOptions::Mode::async), [](const std::string& address) {
    Hand one(address, 0, 3);
    Hand two(address, 1, 3);
    one.init({1, 2});
    Hand::answer(*one.load("a"));
    EXPECT_THAT(
        Hand::answer(*two.load("b")).value("error", ""),
        HasSubstr("worker 1 has loaded b, but other workers have loaded a: give all workers the same checkpoint"));
    one.set(1, {10, 20}, 40);
    EXPECT_THAT(Hand::answer(*two.load("b")).value("error", ""),
                HasSubstr("a worker has loaded b, but the others have loaded a: give all"));
    EXPECT_EQ(Hand::answer(*two.load("a")).at("status"), "ok");
  });
  with_two(mode(ServerOptions::Mode::async), {1, 2}, [](Hand& one, Hand& two) {
    Hand::answer(*one.push_pull(0, {1, 1}));
    EXPECT_THAT(Hand::answer(*two.load("b")).value("error", ""), HasSubstr("others have made 1 updates without it"));
  });
}

// A program goes back to a checkpoint while it trains: each worker after the same step.
TEST(ServerLoadsTest, WorkersThatTrainMayLoadTogether) {
  with_two(mode(ServerOptions::Mode::async), {1, 2}, [](Hand& one, Hand& two) {
    Hand::answer(*one.push_pull(0, {1, 0}));
    Hand::answer(*two.push_pull(1, {1, 0}));
    for (int64_t time = 0; time < 2; ++time) { // the same one twice
      EXPECT_EQ(Hand::answer(*one.load("a", {{"after", time}})).at("status"), "bring");
      one.set(time + 1, {10, 20}, 40);
      EXPECT_EQ(Hand::answer(*two.load("a", {{"after", time}})).at("status"), "ok");
      EXPECT_EQ(Hand::answer(*two.push_pull(two.status().at("clock"), {2, 0})).at("status"), "accepted");
      EXPECT_THAT(one.values(), ElementsAre(9.0f, 20.0f));
    }
  });
}

TEST(ServerLoadsTest, WhoIsNotAskedBringsNothing) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    Hand one(address, 0);
    one.init({1, 2});
    EXPECT_THAT(one.set(1, {10, 20}, 40).value("error", ""), HasSubstr("send load first"));
    EXPECT_THAT(Hand::answer(*one.load("a", {{"step", "many"}})).value("error", ""), HasSubstr("header"));
    EXPECT_THAT(one.values(), ElementsAre(1.0f, 2.0f));
  });
}

TEST(ServerLoadsTest, AServerThatIsStartedAgainKnowsWhatWasLoaded) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / concat("trireme_loads_", ::getpid());
  ServerOptions options = mode(ServerOptions::Mode::async);
  options.snapshot_every = 1;
  EXPECT_THAT(with_server(
                  options,
                  [&](const std::string& address) {
                    Hand one(address, 0);
                    one.init({1, 2});
                    Hand::answer(*one.load("a"));
                    one.set(1, {10, 20}, 40);
                    Hand::answer(*one.push_pull(1, {2, 0}));
                  },
                  folder),
              IsEmpty());
  EXPECT_THAT(with_server(
                  options,
                  [&](const std::string& address) {
                    Hand one(address, 0, 2, {{"lives", true}});
                    EXPECT_EQ(one.joined.at("load"), json({{"number", 1}, {"id", "a"}, {"step", 20}, {"clock", 1}}));
                    EXPECT_EQ(one.joined.at("step"), 21);
                    Hand two(address, 1, 2, {{"lives", true}});
                    EXPECT_EQ(Hand::answer(*two.load("a")).at("status"), "ok");
                    EXPECT_THAT(two.values(), ElementsAre(9.0f, 20.0f));
                  },
                  folder),
              IsEmpty());
  std::filesystem::remove_all(folder);
}

} // namespace
} // namespace trireme::parallel::server
