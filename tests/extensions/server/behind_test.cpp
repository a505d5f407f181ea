// Servers at different steps, because one of them was started again: whose gradients count where. The test plays server
// 0.
#include "hand.h"

#include <trireme/base/run_token.h>

#include <gmock/gmock.h>

namespace trireme::parallel::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// A push to server 1 for this step of server 0.
std::shared_ptr<Hand::Asked> push(Hand& hand, int worker, int64_t clock, int64_t step, const Values& gradient) {
  return hand.send({{"op", "push"}, {"worker", worker}, {"clock", clock}, {"first_clock", step}}, &gradient, true);
}
std::shared_ptr<Hand::Asked> sum(Hand& hand, int worker, int64_t clock, int64_t step, const std::vector<int>& members) {
  return hand.send({{"op", "sum"}, {"worker", worker}, {"clock", clock}, {"first_clock", step}, {"members", members}});
}
std::shared_ptr<Hand::Asked> pull(Hand& hand, int64_t step) {
  return hand.send({{"op", "pull"}, {"first_clock", step}}, nullptr, true);
}

// Server 0 has lost the step and makes it again, with a worker that has come meanwhile.
TEST(ServerBehindTest, AServerThatHasMadeTheStepStandsStill) {
  with_two(mode(ServerOptions::Mode::hybrid), {0}, 1, [](Hand& one, Hand& two) {
    const auto first = push(one, 0, 0, 0, {1});
    EXPECT_EQ(Hand::answer(*sum(one, 0, 0, 0, {0})).at("squared_norm"), 1.0);
    Hand::answer(*one.commit(0, 1, {{"members", {0}}, {"first_clock", 0}}));
    const auto again = push(two, 1, 1, 0, {8});
    const json stale = Hand::answer(*again);
    EXPECT_EQ(stale.at("status"), "stale");
    EXPECT_EQ(stale.at("first_clock"), 1);
    EXPECT_EQ(again->values()[0], -0.5f) << "with values, at once";
    // The next step has both: the one that was stale is waited for.
    const auto next = push(one, 0, 1, 1, {1});
    const auto told = sum(one, 0, 1, 1, {0, 1});
    two.status();
    EXPECT_FALSE(told->call->done());
    const auto other = push(two, 1, 1, 1, {2});
    EXPECT_EQ(Hand::answer(*told).at("squared_norm"), 9.0);
    EXPECT_EQ(one.status().at("updates"), 1);
  });
}

// Of a step that server 0 has made again, a worker that was stale here brings nothing more: who commits does not wait
// for it.
TEST(ServerBehindTest, WhoHasTheStepBehindItIsNotWaitedFor) {
  with_two(mode(ServerOptions::Mode::hybrid), {0}, 1, [](Hand& one, Hand& two) {
    const auto first = push(one, 0, 0, 0, {1});
    const auto waits = sum(one, 0, 0, 0, {0, 1});
    const auto values = pull(two, 1); // it has taken server 0's values after the step
    EXPECT_EQ(Hand::answer(*waits).at("squared_norm"), 1.0);
    EXPECT_FALSE(values->call->done());
    Hand::answer(*one.commit(0, 1, {{"members", {0, 1}}, {"first_clock", 0}}));
    EXPECT_EQ(Hand::answer(*values).at("first_clock"), 1);
    EXPECT_EQ(values->values()[0], -0.5f);
  });
}

TEST(ServerBehindTest, AServerThatHasLostUpdatesGoesOnFromWhatItHas) {
  with_two(mode(ServerOptions::Mode::sync), {0}, 1, [](Hand& one, Hand& two) {
    const auto values = pull(two, 3);
    one.status();
    EXPECT_FALSE(values->call->done()) << "another worker may bring what is missing";
    const auto first = push(one, 0, 0, 3, {1});
    EXPECT_EQ(Hand::answer(*values).at("first_clock"), 3) << "nobody does";
    const auto second = push(two, 1, 0, 3, {2});
    EXPECT_EQ(Hand::answer(*first).at("status"), "commit");
    Hand::answer(*one.commit(0, 1, {{"members", {0, 1}}, {"first_clock", 3}}));
    const json accepted = Hand::answer(*second);
    EXPECT_EQ(accepted.at("status"), "accepted");
    EXPECT_EQ(accepted.at("first_clock"), 4);
    EXPECT_EQ(second->values()[0], -1.5f);
  });
}

// It goes on with a later step: the gradient of an earlier one on the same server is part of none.
TEST(ServerBehindTest, AGradientOfAnEarlierStepIsNoPartOfALaterOne) {
  with_two(mode(ServerOptions::Mode::sync), {0}, 1, [](Hand& one, Hand& two) {
    const auto old = push(one, 0, 0, 0, {64});
    const auto later = push(two, 1, 0, 1, {2});
    EXPECT_EQ(Hand::answer(*old).at("status"), "stale");
    const auto next = push(one, 0, 0, 1, {1});
    EXPECT_EQ(Hand::answer(*next).at("squared_norm"), 9.0);
    EXPECT_EQ(one.status().at("dropped"), 1);
  });
}

TEST(ServerBehindTest, ASumOfNobodysGradientIsMissing) {
  by_hand(mode(ServerOptions::Mode::hybrid), 1, [](const std::string& address) {
    Hand one(address, 0, 1);
    one.init({0});
    const auto pushed = push(one, 0, 0, 0, {1});
    one.ask({{"op", "withdraw"}, {"worker", 0}, {"first_clock", 0}});
    EXPECT_EQ(Hand::answer(*pushed).at("status"), "stale");
    EXPECT_EQ(Hand::answer(*sum(one, 0, 0, 0, {0})).at("status"), "missing");
  });
}

// Of two words on their way that of the process before may come last.
TEST(ServerBehindTest, AWorkerThatWasStartedAgainIsNotReplacedByTheOneBefore) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    Hand again(address, 0, 1, {{"restarted", true}});
    again.init({0, 0});
    const Hand before(address, 0, 1);
    EXPECT_EQ(before.joined.at("status"), "refused");
    EXPECT_THAT(before.joined.at("error").get<std::string>(), HasSubstr("worker 0 was restarted"));
    EXPECT_EQ(Hand::answer(*again.push(0, {1, 0})).at("status"), "commit");
  });
}

// Another training has the run folder: a snapshot would be what its servers go on from.
TEST(ServerBehindTest, AServerOfAReplacedTrainingWritesNothingMoreAndEnds) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("trireme_replaced_", ::getpid());
  EXPECT_THAT(test::run_processes(1,
                                  [&](int) {
                                    const auto server = rpc::serve("local://server", {});
                                    ParameterServerOptions options;
                                    options.server = mode(ServerOptions::Mode::async);
                                    options.server.servers = 1;
                                    options.server.snapshot_every = 1;
                                    options.folder = folder;
                                    std::atomic<bool> replaced{false};
                                    options.check_claim = [&] {
                                      if (replaced) {
                                        throw ReplacedError("this training was replaced by attempt 2", false);
                                      }
                                    };
                                    std::string error;
                                    std::thread thread([&] {
                                      try {
                                        parallel::server::serve(*server, options);
                                      } catch (const ReplacedError& problem) {
                                        error = problem.what();
                                      }
                                    });
                                    Hand one(server->address(), 0, 1);
                                    one.init({1, 1});
                                    Hand::answer(*one.push_pull(0, {1, 0}));
                                    const std::string kept = read_file(folder / "server-0.safetensors");
                                    replaced = true;
                                    Hand::answer(*one.push_pull(1, {1, 0}));
                                    thread.join();
                                    EXPECT_THAT(error, HasSubstr("replaced by attempt 2"));
                                    EXPECT_TRUE(read_file(folder / "server-0.safetensors") == kept);
                                  }),
              IsEmpty());
  std::filesystem::remove_all(folder);
}

} // namespace
} // namespace trireme::parallel::server
