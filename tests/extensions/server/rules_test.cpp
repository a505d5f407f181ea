// When servers step, whose gradients count, and what becomes of those who are late, gone or wrong. Requests are made by
// hand, so that their order is known.
#include "hand.h"

#include <gmock/gmock.h>

namespace trireme::parallel::server {
namespace {

using test::with_server;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ServerRulesTest, EachGradientIsAStepWhereNobodyWaits) {
  with_two(mode(ServerOptions::Mode::async), {1, 2}, [](Hand& one, Hand& two) {
    EXPECT_EQ(Hand::answer(*one.push_pull(0, {1, 0})).at("status"), "accepted");
    const auto second = two.push_pull(0, {0, 1}, {{"lr", 0.25}, {"factor", 2.0}}); // of values that are one update old
    EXPECT_EQ(Hand::answer(*second).at("clock"), 2);
    EXPECT_THAT(second->values(), ElementsAre(0.5f, 1.5f));
    EXPECT_EQ(Hand::answer(*two.push_pull(2, {9, 9}, {{"factor", nullptr}})).at("status"),
              "accepted"); // a step that this worker skips
    EXPECT_THAT(one.values(), ElementsAre(0.5f, 1.5f));
    EXPECT_EQ(one.status().at("largest_staleness"), 1);
  });
}

TEST(ServerRulesTest, NobodyIsFurtherAheadThanTheBound) {
  by_hand(mode(ServerOptions::Mode::stale, 1), [](const std::string& address) {
    Hand fast(address, 0);
    Hand slow(address, 1);
    fast.init({0, 0});
    EXPECT_EQ(Hand::answer(*fast.push_pull(0, {1, 0})).at("status"), "accepted"); // one ahead
    const auto second = fast.push_pull(1, {1, 0});
    while (slow.status().at("updates") < 2) {
    }
    EXPECT_FALSE(second->call->done()) << "two steps ahead of the slowest, and the bound is one";
    EXPECT_EQ(Hand::answer(*slow.push_pull(2, {0, 1})).at("status"), "accepted");
    EXPECT_EQ(Hand::answer(*second).at("status"), "accepted");
    EXPECT_THAT(second->values(), ElementsAre(-1.0f, -0.5f)) << "the values are those of the moment of the answer";
  });
}

TEST(ServerRulesTest, AStepIsTheSumOfAllInTheOrderOfTheWorkers) {
  with_two(mode(ServerOptions::Mode::sync), {0, 0}, [](Hand& one, Hand& two) {
    const auto later = two.push(0, {3, 1e8f}, 1.0); // comes first
    const auto first = one.push(0, {1, 1}, 3.0);
    const json decided = Hand::answer(*first);
    EXPECT_EQ(decided.at("members"), json({0, 1}));
    EXPECT_EQ(decided.at("loss"), 2.0);
    EXPECT_NEAR(decided.at("squared_norm").get<double>(), 16 + 1e16, 1e9);
    const auto committed = one.commit(0, 0.5);
    EXPECT_EQ(Hand::answer(*committed).at("clock"), 1);
    EXPECT_EQ(Hand::answer(*later).at("squared_norm"), decided.at("squared_norm"));
    EXPECT_THAT(committed->values(), ElementsAre(-1.0f, testing::FloatEq(-2.5e7f)));
    const auto also = two.commit(0, 0.5);
    Hand::answer(*also);
    EXPECT_EQ(also->values(), committed->values()) << "the second commit of a clock changes nothing";
  });
}

TEST(ServerRulesTest, OneCommitsForAllThatWaitForValues) {
  with_two(mode(ServerOptions::Mode::sync), {0, 0}, [](Hand& one, Hand& two) {
    const auto second = two.push(0, {3, 1}, 1.0);
    const auto first = one.push(0, {1, 1}, 3.0);
    const json asked = Hand::answer(*first);
    EXPECT_EQ(asked.at("status"), "commit");
    EXPECT_EQ(asked.at("members"), json({0, 1}));
    EXPECT_EQ(asked.at("loss"), 2.0);
    EXPECT_EQ(asked.at("squared_norm"), 20.0);
    EXPECT_FALSE(second->call->done()) << "it waits for the step";
    const auto committed = one.commit(0, 0.5, {{"members", {0, 1}}, {"squared_norm", 21.5}});
    EXPECT_EQ(Hand::answer(*committed).at("clock"), 1);
    const json done = Hand::answer(*second);
    EXPECT_EQ(done.at("status"), "accepted");
    EXPECT_EQ(done.at("clock"), 1);
    EXPECT_EQ(done.at("loss"), 2.0);
    EXPECT_EQ(done.at("squared_norm_of_all"), 21.5) << "of all servers, as the one that has committed has seen it";
    EXPECT_THAT(second->values(), ElementsAre(-1.0f, -0.5f));
    EXPECT_EQ(committed->values(), second->values());
    EXPECT_EQ(one.status().at("updates"), 1);
  });
}

TEST(ServerRulesTest, AnotherOneIsAskedToCommitWhenTheFirstIsGone) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    auto one = std::make_unique<Hand>(address, 0, 3);
    Hand two(address, 1, 3);
    Hand three(address, 2, 3);
    one->init({0, 0});
    const auto third = three.push(0, {1, 0});
    const auto second = two.push(0, {1, 0});
    EXPECT_EQ(Hand::answer(*one->push(0, {4, 2})).at("status"), "commit");
    one.reset();
    const json asked = Hand::answer(*second);
    EXPECT_EQ(asked.at("status"), "commit");
    EXPECT_EQ(asked.at("members"), json({0, 1, 2})) << "the first one's gradient is part of the sum";
    Hand::answer(*two.commit(0, 1));
    EXPECT_EQ(Hand::answer(*third).at("status"), "accepted");
    EXPECT_THAT(third->values(), ElementsAre(-3.0f, -1.0f));
    EXPECT_EQ(two.status().at("lost"), 0);
  });
}

// What it was told is lost with the connection before.
TEST(ServerRulesTest, AnotherOneIsAskedToCommitWhenTheFirstJoinsAgain) {
  with_two(mode(ServerOptions::Mode::sync), {0, 0}, [](Hand& one, Hand& two) {
    const auto second = two.push(0, {1, 0});
    EXPECT_EQ(Hand::answer(*one.push(0, {1, 0})).at("status"), "commit");
    Hand again(one.address, 0);
    EXPECT_EQ(Hand::answer(*second).at("status"), "commit");
    const auto late = again.push(0, {1, 0});
    Hand::answer(*two.commit(0, 1));
    EXPECT_EQ(Hand::answer(*late).at("status"), "stale");
    EXPECT_THAT(late->values(), ElementsAre(-1.0f, 0.0f));
    Hand alone(one.address, 1); // the same with nobody else to ask
    again.ask({{"op", "leave"}, {"worker", 0}});
    EXPECT_EQ(Hand::answer(*alone.push(1, {1, 0})).at("status"), "commit");
    Hand back(one.address, 1);
    EXPECT_EQ(Hand::answer(*back.push(1, {1, 0})).at("status"), "commit");
    Hand::answer(*back.commit(1, 1));
    EXPECT_THAT(back.values(), ElementsAre(-1.5f, 0.0f)) << "its gradient counts once";
  });
}

TEST(ServerRulesTest, WhoIsAskedToCommitIsNotWaitedForLongerThanTheTimeOut) {
  with_two(mode(ServerOptions::Mode::hybrid, 0, 0.05), {0, 0}, [](Hand& one, Hand& two) {
    const auto first = one.push(0, {1, 0});
    const auto second = two.push(0, {1, 0});
    const json asked = Hand::answer(*first); // and it says nothing more
    EXPECT_EQ(asked.at("status"), "commit");
    if (asked.at("members") == json({0, 1})) { // else the second one came later than that
      EXPECT_EQ(Hand::answer(*second).at("status"), "commit");
      Hand::answer(*two.commit(0, 1));
      EXPECT_THAT(two.values(), ElementsAre(-1.0f, 0.0f));
    }
    const auto too_late = one.commit(0, 7);
    if (asked.at("members") == json({0, 1})) {
      EXPECT_EQ(Hand::answer(*too_late).at("clock"), 1);
      EXPECT_THAT(too_late->values(), ElementsAre(-1.0f, 0.0f));
    }
  });
}

// The second server has one of the two elements. It adds up what is there, and again when the first one, whose part the
// test plays, has found other members.
TEST(ServerRulesTest, AServerThatDoesNotDecideAddsUpAgainForOtherMembers) {
  with_two(mode(ServerOptions::Mode::sync), {0}, 1, [](Hand& one, Hand& two) {
    const auto second = two.push(0, {2});
    const json asked = Hand::answer(*one.push(0, {1}));
    EXPECT_EQ(asked.at("status"), "commit");
    EXPECT_EQ(asked.at("members"), json({0, 1}));
    EXPECT_EQ(asked.at("squared_norm"), 9.0);
    const json told = Hand::answer(*one.sum(0, {0}));
    EXPECT_EQ(told.at("squared_norm"), 1.0);
    const auto committed = one.commit(0, 1, {{"members", {0}}, {"first_clock", 0}});
    Hand::answer(*committed);
    EXPECT_EQ(committed->values()[0], -0.5f);
    EXPECT_EQ(Hand::answer(*second).at("status"), "stale");
    EXPECT_EQ(second->values()[0], -0.5f);
    EXPECT_EQ(one.status().at("dropped"), 1);
    // A third one joins when the two are added up; it is not among the members.
    const auto next = two.push(1, {2});
    EXPECT_EQ(Hand::answer(*one.push(1, {1})).at("squared_norm"), 9.0);
    Hand again(one.address, 1);
    const auto other = again.push(1, {5});
    EXPECT_FALSE(other->call->done());
    const auto both = one.commit(1, 1, {{"members", {0, 1}}, {"first_clock", 1}});
    Hand::answer(*both);
    EXPECT_EQ(both->values()[0], -3.5f) << "what has come over its new connection is the second one's gradient";
    EXPECT_EQ(Hand::answer(*other).at("status"), "accepted");
  });
}

// The first server has counted it, or has not: whoever commits says which.
TEST(ServerRulesTest, AServerThatDoesNotDecideKeepsTheGradientOfAWorkerThatIsGone) {
  for (const bool counted : {true, false}) {
    by_hand(mode(ServerOptions::Mode::sync), 1, [counted](const std::string& address) {
      Hand one(address, 0);
      one.init({0});
      std::shared_ptr<Hand::Asked> first;
      {
        Hand two(address, 1);
        const auto second = two.push(0, {2});
        first = one.push(0, {1});
        EXPECT_EQ(Hand::answer(*first).at("members"), json({0, 1}));
      }
      while (one.status().at("live") != json({0})) {
      }
      if (!counted) {
        EXPECT_EQ(Hand::answer(*one.sum(0, {0})).at("squared_norm"), 1.0);
      }
      const json members = counted ? json({0, 1}) : json({0});
      const auto committed = one.commit(0, 1, {{"members", members}, {"first_clock", 0}});
      EXPECT_EQ(Hand::answer(*committed).at("status"), "ok");
      EXPECT_EQ(committed->values()[0], counted ? -1.5f : -0.5f);
      EXPECT_EQ(one.status().at("updates"), 1);
    });
  }
}

TEST(ServerRulesTest, WhoComesAfterTheTimeOutIsDropped) {
  with_two(mode(ServerOptions::Mode::hybrid, 0, 0.05), {0, 0}, [](Hand& one, Hand& two) {
    EXPECT_EQ(Hand::answer(*one.push(0, {1, 0})).at("members"), json({0}));
    const auto late = two.push(0, {1, 0});
    Hand::answer(*one.commit(0, 1));
    EXPECT_EQ(Hand::answer(*late).at("status"), "stale");
    EXPECT_THAT(late->values(), ElementsAre(-0.5f, 0.0f));
    EXPECT_EQ(Hand::answer(*two.push(0, {1, 0})).at("status"), "stale");
    EXPECT_THAT(two.values(), ElementsAre(-0.5f, 0.0f));
    EXPECT_EQ(two.status().at("dropped"), 2);
    EXPECT_EQ(two.status().at("accepted"), 1);
  });
}

TEST(ServerRulesTest, AWorkerThatIsGoneIsNotWaitedFor) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    Hand one(address, 0);
    auto two = std::make_unique<Hand>(address, 1);
    one.init({0, 0});
    const auto first = one.push(0, {1, 0});
    const auto lost = two->push(0, {4, 4}); // closes the clock
    Hand::answer(*first);
    Hand::answer(*one.commit(0, 1));
    const auto next = one.push(1, {1, 0});
    two.reset();
    EXPECT_EQ(Hand::answer(*next).at("members"), json({0}));
    Hand::answer(*one.commit(1, 1));
    EXPECT_THAT(one.values(), ElementsAre(-3.0f, -2.0f));
    two = std::make_unique<Hand>(address, 1); // it comes again
    const auto both = one.push(2, {1, 0});
    const auto other = two->push(2, {1, 0});
    EXPECT_EQ(Hand::answer(*both).at("members"), json({0, 1}));
    Hand::answer(*one.commit(2, 1));
    EXPECT_EQ(Hand::answer(*other).at("members"), json({0, 1}));
  });
}

TEST(ServerRulesTest, AnUpdateThatNobodyCanCommitIsCountedAsLost) {
  by_hand(mode(ServerOptions::Mode::hybrid, 0, 0.05), [](const std::string& address) {
    Hand one(address, 0);
    auto two = std::make_unique<Hand>(address, 1);
    one.init({0, 0});
    EXPECT_EQ(Hand::answer(*two->push(0, {1, 0})).at("status"), "commit");
    two.reset(); // before its commit
    while (one.status().at("lost") != 1) {
    }
    EXPECT_EQ(Hand::answer(*one.push(0, {2, 0})).at("members"), json({0}));
    Hand::answer(*one.commit(0, 1));
    EXPECT_THAT(one.values(), ElementsAre(-1.0f, 0.0f));
  });
}

TEST(ServerRulesTest, AServerGoesOnFromItsSnapshot) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("trireme_snapshot_", ::getpid());
  ServerOptions options = mode(ServerOptions::Mode::async);
  options.snapshot_every = 2;
  const std::filesystem::path kept = folder / "server-0.safetensors";
  EXPECT_THAT(with_server(
                  options,
                  [&](const std::string& address) {
                    Hand one(address, 0, 1);
                    one.init({1, 1});
                    Hand::answer(*one.push_pull(0, {1, 0}));
                    EXPECT_TRUE(std::filesystem::exists(kept))
                        << "a server that ends before its first update has the first values";
                    Hand::answer(*one.push_pull(1, {1, 0}));
                    std::filesystem::copy_file(kept, folder / "copy");
                    Hand::answer(*one.push_pull(2, {1, 0})); // will be lost
                  },
                  folder),
              IsEmpty());
  std::filesystem::copy_file(folder / "copy", kept, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(with_server(
                  options,
                  [&](const std::string& address) {
                    Hand one(address, 0, 1);
                    EXPECT_EQ(one.joined.at("clock"), 2);
                    EXPECT_TRUE(one.joined.at("initialized").get<bool>());
                    EXPECT_EQ(one.joined.at("steps"), 2);
                    EXPECT_THAT(one.values(), ElementsAre(0.0f, 1.0f));
                  },
                  folder),
              IsEmpty());
  std::filesystem::remove_all(folder);
}

// The answer to a push, or the step itself, is lost with a connection: the same push again gets the same answer, and no
// second part in a step.
TEST(ServerRulesTest, APushThatIsSentAgainCountsOnce) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    Hand one(address, 0);
    auto two = std::make_unique<Hand>(address, 1);
    one.init({0, 0});
    const auto first = one.push(0, {1, 0}, 3);
    const auto second = two->push(0, {1, 0}, 1);
    Hand::answer(*first);
    Hand::answer(*one.commit(0, 0.5));
    const json decided = Hand::answer(*second);
    two = std::make_unique<Hand>(address, 1);
    const json again = Hand::answer(*two->push(0, {9, 9}, 1));
    for (const char* key : {"status", "members", "loss", "squared_norm"}) {
      EXPECT_EQ(again.at(key), decided.at(key)) << key;
    }
    Hand::answer(*two->commit(0, 0.5));
    EXPECT_THAT(two->values(), ElementsAre(-0.5f, 0.0f));
    EXPECT_EQ(two->status().at("updates"), 1);
  });
}

// Workers of both kinds: the one that would have said the factor is gone, the other goes on.
TEST(ServerRulesTest, ARoundWhoseCommitterIsGoneIsFinishedForTheOthers) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    Hand one(address, 0);
    auto two = std::make_unique<Hand>(address, 1);
    one.init({0, 0});
    const auto waits = one.push_pull(0, {1, 0}, {{"lr", 0.25}});
    EXPECT_EQ(Hand::answer(*two->push(0, {3, 0})).at("status"), "commit");
    two.reset();
    EXPECT_EQ(Hand::answer(*waits).at("status"), "accepted");
    EXPECT_THAT(waits->values(), ElementsAre(-0.5f, 0.0f)) << "the mean of both";
  });
}

TEST(ServerRulesTest, AStepMayBeSkippedWithoutACommit) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    Hand one(address, 0, 1);
    one.init({1, 1});
    const auto skipped = one.push_pull(0, {1, 0}, {{"factor", nullptr}});
    EXPECT_EQ(Hand::answer(*skipped).at("clock"), 1);
    EXPECT_THAT(skipped->values(), ElementsAre(1.0f, 1.0f));
    EXPECT_EQ(Hand::answer(*one.push_pull(1, {1, 0})).at("clock"), 2);
    EXPECT_THAT(one.values(), ElementsAre(0.5f, 1.0f));
  });
}

TEST(ServerRulesTest, ASnapshotThatCannotBeWrittenDoesNotEndTheJob) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / concat("trireme_no_folder_", ::getpid());
  write_file_atomically(folder, "a file where a folder should be");
  ServerOptions options = mode(ServerOptions::Mode::async);
  options.snapshot_every = 1;
  EXPECT_THAT(with_server(
                  options,
                  [&](const std::string& address) {
                    Hand one(address, 0, 1);
                    one.init({1, 1});
                    for (int step = 0; step < 3; ++step) {
                      EXPECT_EQ(Hand::answer(*one.push_pull(step, {1, 0})).at("status"), "accepted");
                    }
                    EXPECT_THAT(one.values(), ElementsAre(-0.5f, 1.0f));
                  },
                  folder / "below"),
              IsEmpty());
  std::filesystem::remove(folder);
}

TEST(ServerRulesTest, WhatAWorkerDoesWrongIsAnsweredToItAlone) {
  by_hand(mode(ServerOptions::Mode::sync), [](const std::string& address) {
    Hand good(address, 0, 1);
    const auto refusal = [&](const json& header, const Values* body = nullptr, bool room = false) {
      const json reply = good.ask(header, body, room);
      EXPECT_EQ(reply.at("status"), "refused") << reply;
      return reply.value("error", "");
    };
    const Values some{1, 1};
    EXPECT_THAT(refusal({{"op", "push"}, {"worker", 0}, {"clock", 0}}, &some), HasSubstr("no values yet"));
    good.init({0, 0});
    EXPECT_THAT(refusal({{"op", "push"}, {"worker", 0}, {"clock", 0}}), HasSubstr("the body has 0 bytes"));
    EXPECT_THAT(refusal({{"op", "push"}, {"worker", 7}, {"clock", 0}}, &some), HasSubstr("worker 7 has not joined"));
    EXPECT_THAT(refusal({{"op", "commit"}, {"worker", 0}, {"clock", 0}, {"lr", 1}, {"factor", 1}}),
                HasSubstr("no sum to commit"));
    EXPECT_THAT(refusal({{"op", "push"}, {"worker", 0}, {"clock", 0}, {"loss", "much"}}, &some), HasSubstr("header"));
    EXPECT_THAT(refusal({{"op", "sum"}, {"clock", 0}, {"members", "all"}}), HasSubstr("header"));
    EXPECT_THAT(refusal({{"op", "fly"}}), HasSubstr("unknown op \"fly\""));
    EXPECT_THAT(refusal({{"nothing", 1}}), HasSubstr("header"));
    EXPECT_THAT(refusal({{"op", 5}}), HasSubstr("header"));
    EXPECT_THAT(refusal({{"op", "push"}, {"worker", "zero"}, {"clock", 0}}, &some), HasSubstr("header"));
    EXPECT_THAT(refusal({{"op", "join"},
                         {"worker", 0},
                         {"workers", 1},
                         {"parameters", {{{"name", "w"}, {"shape", {3}}}}},
                         {"optimizer", {{"type", "SGD"}}}}),
                HasSubstr("differ from those of earlier workers"));
    EXPECT_THAT(refusal({{"op", "join"},
                         {"worker", 3},
                         {"workers", 1},
                         {"parameters", {{{"name", "w"}, {"shape", {2}}}}},
                         {"optimizer", {{"type", "SGD"}}}}),
                HasSubstr("worker 3 of 1"));
    EXPECT_THAT(refusal({{"op", "push"}, {"worker", 0}, {"clock", 0}}, &some),
                HasSubstr("room for 0 bytes of values, but there are 64"));
    EXPECT_THAT(refusal({{"op", "push_pull"}, {"worker", 0}, {"clock", 0}}, &some), HasSubstr("room for 0"));
    EXPECT_EQ(good.status().at("updates"), 0);
    EXPECT_EQ(Hand::answer(*good.push(0, {1, 0})).at("status"), "commit");
  });
}

} // namespace
} // namespace trireme::parallel::server
