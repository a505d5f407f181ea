// Processes that come and go agree on who takes part in a round, and on the order of their ranks.
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/store/meeting.h>
#include <trireme/store/server.h>

#include <tests/support/peer_error.h>

#include <gmock/gmock.h>

#include <future>
#include <memory>
#include <mutex>
#include <vector>

namespace trireme::store {
namespace {

using trireme::test::error_of;
using testing::HasSubstr;

/// A round as a value that can be compared.
struct Place {
  Place(int64_t number, int rank, int size) : number(number), rank(rank), size(size) {}
  Place(const Round& round) : number(round.number), rank(round.rank), size(round.size) {}
  friend bool operator==(const Place&, const Place&) = default;
  int64_t number;
  int rank;
  int size;
};

/// The store of a job, and its processes: the end of one's connection is what its death would be.
class MeetingTest : public testing::Test {
 protected:
  MeetingTest() {
    const int listening = store::listen_on({"127.0.0.1", 0});
    options_.store = {"127.0.0.1", store::bound_port(listening)};
    options_.secret = store::Secret::random();
    options_.patience = std::chrono::seconds(30);
    server_ = std::make_unique<store::Server>(listening, store::ServerOptions{.secret = options_.secret});
  }

  std::shared_ptr<store::Client> connect() {
    return store::Client::connect(options_.store, options_.secret, "", std::chrono::steady_clock::now() + std::chrono::seconds(30));
  }
  Meeting& come() {
    meetings_.push_back(std::make_unique<Meeting>(options_, connect()));
    return *meetings_.back();
  }
  /// Returns when the store knows that it has come.
  std::future<Round> next(Meeting& meeting) {
    const auto before = probe();
    auto future = std::async(std::launch::async, [&meeting] { return meeting.next_round(); });
    while (probe() == before && future.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    }
    return future;
  }
  /// Of several at once; the first in the list comes first, so that its number is lower.
  std::vector<Round> next(const std::vector<Meeting*>& meetings) {
    std::vector<std::future<Round>> futures;
    for (Meeting* const meeting : meetings) {
      futures.push_back(next(*meeting));
    }
    std::vector<Round> rounds;
    for (auto& future : futures) {
      rounds.push_back(future.get());
    }
    return rounds;
  }
  void leave(Meeting& meeting) {
    std::erase_if(meetings_, [&](const auto& one) { return one.get() == &meeting; });
  }
  /// Counts who has entered or come.
  std::string probe() {
    const auto client = connect();
    std::string all;
    for (int id = 1; id < 12; ++id) {
      all += client->find(concat("elastic/come/", id)).value_or("-") + " ";
    }
    return all;
  }
  MeetingOptions options_;
  std::unique_ptr<store::Server> server_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
};

TEST_F(MeetingTest, RanksAreInTheOrderOfComing) {
  options_.min_ranks = 3;
  Meeting &a = come(), &b = come(), &c = come();
  const auto rounds = next({&b, &a, &c});
  EXPECT_EQ(Place(rounds[0]), (Place{1, 0, 3}));
  EXPECT_EQ(Place(rounds[1]), (Place{1, 1, 3}));
  EXPECT_EQ(Place(rounds[2]), (Place{1, 2, 3}));
  EXPECT_FALSE(a.changed());
  EXPECT_FALSE(c.changed());
}

TEST_F(MeetingTest, ThoseWhoAreLeftMeetAgainAndKeepTheirOrder) {
  options_.min_ranks = 2;
  options_.max_ranks = 3;
  Meeting &a = come(), &b = come(), &c = come();
  next({&a, &b, &c});
  leave(a);
  while (!b.changed()) {
  }
  EXPECT_TRUE(c.changed());
  const auto rounds = next({&c, &b});
  EXPECT_EQ(Place(rounds[0]), (Place{2, 1, 2}));
  EXPECT_EQ(Place(rounds[1]), (Place{2, 0, 2}));
  EXPECT_FALSE(b.changed());
}

TEST_F(MeetingTest, OneThatComesIsTakenInWhenTheOthersCome) {
  options_.min_ranks = 2;
  Meeting &a = come(), &b = come();
  next({&a, &b});
  options_.min_ranks = 1; // of those who come later: it still does not begin without the others
  Meeting& c = come();
  auto waiting = next(c);
  while (!a.changed()) {
  }
  EXPECT_TRUE(b.changed());
  const auto rounds = next({&b, &a});
  EXPECT_EQ(Place(rounds[0]), (Place{2, 1, 3}));
  EXPECT_EQ(Place(rounds[1]), (Place{2, 0, 3}));
  EXPECT_EQ(Place(waiting.get()), (Place{2, 2, 3}));
  EXPECT_FALSE(a.changed());
}

TEST_F(MeetingTest, MoreThanThereIsRoomForWaitForALoss) {
  options_.min_ranks = 1;
  options_.max_ranks = 2;
  Meeting &a = come(), &b = come();
  next({&a, &b});
  Meeting& c = come();
  auto waiting = next(c);
  EXPECT_FALSE(a.changed());
  const auto rounds = next({&a, &b}); // for a fault that was no loss: the third one is still too many
  EXPECT_EQ(Place(rounds[0]), (Place{2, 0, 2}));
  EXPECT_EQ(Place(rounds[1]), (Place{2, 1, 2}));
  EXPECT_FALSE(b.changed());
  leave(a);
  while (!b.changed()) {
  }
  EXPECT_EQ(Place(b.next_round()), (Place{3, 0, 2}));
  EXPECT_EQ(Place(waiting.get()), (Place{3, 1, 2}));
}

// It hung, or was stopped: what it has is older than what the others have, so it is not rank 0 again.
TEST_F(MeetingTest, OneThatIsLateIsLeftOutAndComesBackLast) {
  options_.min_ranks = 2;
  options_.max_ranks = 3;
  Meeting &a = come(), &b = come();
  options_.late_patience = std::chrono::milliseconds(0);
  Meeting& c = come(); // which does not wait for others
  next({&a, &b, &c});
  auto rounds = next({&b, &c});
  EXPECT_EQ(Place(rounds[0]), (Place{2, 0, 2}));
  EXPECT_EQ(Place(rounds[1]), (Place{2, 1, 2}));
  auto late = next(a);
  while (!b.changed()) {
  }
  rounds = next({&b, &c});
  EXPECT_EQ(Place(rounds[0]), (Place{3, 0, 3}));
  EXPECT_EQ(Place(rounds[1]), (Place{3, 1, 3}));
  EXPECT_EQ(Place(late.get()), (Place{3, 2, 3}));
}

TEST_F(MeetingTest, PlacesOrderThoseOfOneRoundAndLaterOnesComeBehind) {
  options_.min_ranks = 2;
  options_.place = 5;
  Meeting& a = come();
  options_.place = 3;
  Meeting& b = come();
  auto rounds = next({&a, &b});
  EXPECT_EQ(Place(rounds[0]), (Place{1, 1, 2}));
  EXPECT_EQ(Place(rounds[1]), (Place{1, 0, 2}));
  EXPECT_EQ(rounds[0].places, (std::vector<int>{3, 5}));
  EXPECT_EQ(rounds[0].members, (std::vector<int64_t>{2, 1}));
  options_.place = 0;
  Meeting& c = come();
  auto waiting = next(c);
  while (!a.changed()) {
  }
  rounds = next({&a, &b});
  EXPECT_EQ(Place(waiting.get()), (Place{2, 2, 3}));
  EXPECT_EQ(rounds[0].places, (std::vector<int>{3, 5, 0}));
}

class WaitingTest : public MeetingTest {
 protected:
  /// Two members that train, and that wait for each other; those that come after them are impatient.
  void begin_two(int max_ranks) {
    options_.max_ranks = max_ranks;
    options_.min_ranks = 2;
    a_ = &come();
    b_ = &come();
    next({a_, b_});
    options_.min_ranks = 1;
    options_.late_patience = kImpatient;
    options_.start_patience = std::chrono::milliseconds(300);
  }
  template <typename T>
  static bool waits_for_longer_than_late_patience(const std::future<T>& future) {
    return future.wait_for(std::chrono::milliseconds(700)) != std::future_status::ready;
  }
  static constexpr std::chrono::milliseconds kImpatient{100};
  Meeting* a_ = nullptr;
  Meeting* b_ = nullptr;
};

TEST_F(WaitingTest, ANewcomerWaitsAsLongAsTheMembersTrain) {
  begin_two(0);
  Meeting& c = come();
  auto waiting = next(c);
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting));
  EXPECT_TRUE(a_->changed());
  const auto rounds = next({b_, a_});
  EXPECT_EQ(Place(rounds[1]), (Place{2, 0, 3}));
  EXPECT_EQ(Place(rounds[0]), (Place{2, 1, 3}));
  EXPECT_EQ(Place(waiting.get()), (Place{2, 2, 3}));
}

TEST_F(WaitingTest, ASpareWaitsAsLongAsTheMembersTrainAndPushesNobodyOut) {
  begin_two(2);
  Meeting& c = come();
  auto waiting = next(c);
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting));
  EXPECT_FALSE(a_->changed());
  auto rounds = next({b_, a_});
  EXPECT_EQ(Place(rounds[1]), (Place{2, 0, 2}));
  EXPECT_EQ(Place(rounds[0]), (Place{2, 1, 2}));
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting)) << "of the second round too";
  leave(*a_);
  EXPECT_EQ(Place(b_->next_round()), (Place{3, 0, 2}));
  EXPECT_EQ(Place(waiting.get()), (Place{3, 1, 2}));
}

// The members come one after the other: patience counts from the first one's coming, not from that of one who has waited before.
TEST_F(WaitingTest, PatienceBeginsWithTheFirstMember) {
  begin_two(0);
  Meeting& c = come();
  auto waiting = next(c);
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting));
  auto first = next(*b_);
  EXPECT_TRUE(waits_for_longer_than_late_patience(first));
  EXPECT_EQ(Place(a_->next_round()), (Place{2, 0, 3}));
  EXPECT_EQ(Place(first.get()), (Place{2, 1, 3}));
  EXPECT_EQ(Place(waiting.get()), (Place{2, 2, 3}));
}

TEST_F(WaitingTest, TheEndOfTheTrainingEndsThoseWhoWait) {
  begin_two(2);
  Meeting& c = come();
  auto waiting = next(c);
  EXPECT_FALSE(a_->left_behind());
  EXPECT_TRUE(a_->finish());
  EXPECT_TRUE(b_->finish()) << "every member may say so";
  EXPECT_THAT(error_of([&] { waiting.get(); }), HasSubstr("the training was finished in round 1"));
  leave(*a_);
  leave(*b_);
  try { // and those who come later
    come().next_round();
    FAIL() << "it begins anew";
  } catch (const FinishedError& error) {
    EXPECT_EQ(error.exit_code(), 0);
  }
}

TEST_F(WaitingTest, AMemberThatComesAfterTheEndIsToldToo) {
  begin_two(2);
  EXPECT_TRUE(a_->finish());
  EXPECT_TRUE(b_->changed());
  EXPECT_TRUE(b_->left_behind());
  EXPECT_THROW(b_->next_round(), FinishedError);
}

// The store was lost: one that is started again meanwhile finds it empty.
TEST_F(WaitingTest, ANewcomerInAnEmptyStoreWaitsForOneThatTrains) {
  options_.start_patience = std::chrono::milliseconds(300);
  options_.state = Decision{.number = 7, .members = {4}, .places = {0}}.text();
  Meeting& a = come();
  a.announce();
  EXPECT_TRUE(a.is_counted() && !a.state().empty());
  options_.state.clear();
  Meeting& b = come();
  EXPECT_EQ(b.state(), "");
  auto waiting = next(b);
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting));
  EXPECT_EQ(Place(a.next_round()), (Place{1, 0, 2}));
  EXPECT_EQ(Place(waiting.get()), (Place{1, 1, 2}));
}

// Its connection broke in a stretch: the store takes the process for gone, and one that is started again finds no member.
TEST_F(WaitingTest, ANewcomerWaitsForAMemberWhoseConnectionBroke) {
  begin_two(0);
  options_.state = a_->state();
  leave(*a_);
  leave(*b_);
  Meeting& a = come();
  a.announce();
  EXPECT_TRUE(a.is_counted() && !a.state().empty());
  options_.state.clear();
  Meeting& c = come();
  auto waiting = next(c);
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting));
  EXPECT_EQ(Place(a.next_round()), (Place{2, 0, 2}));
  EXPECT_EQ(Place(waiting.get()), (Place{2, 1, 2}));
}

// The others have gone on while the connection was broken.
TEST_F(WaitingTest, AMemberThatComesBackTooLateIsNotCounted) {
  options_.max_ranks = 2;
  a_ = &come();
  b_ = &come();
  next({a_, b_});
  options_.state = a_->state();
  leave(*a_);
  EXPECT_EQ(Place(b_->next_round()), (Place{2, 0, 1}));
  Meeting& a = come();
  a.announce();
  EXPECT_FALSE(a.is_counted() || !a.state().empty());
}

// All have failed: that is not the end of the training.
TEST_F(WaitingTest, WhenAllMembersAreLostThoseWhoWaitBeginAgain) {
  begin_two(2);
  Meeting& c = come();
  auto waiting = next(c);
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting));
  leave(*a_);
  leave(*b_);
  EXPECT_EQ(Place(waiting.get()), (Place{2, 0, 1}));
  EXPECT_FALSE(c.left_behind());
}

TEST_F(WaitingTest, WhoFinishesTooLateIsTold) {
  options_.max_ranks = 2;
  a_ = &come();
  options_.late_patience = kImpatient;
  b_ = &come();
  next({a_, b_});
  EXPECT_EQ(Place(b_->next_round()), (Place{2, 0, 1})); // after late_patience
  EXPECT_TRUE(a_->left_behind());
  EXPECT_FALSE(a_->finish());
  auto late = next(*a_);
  EXPECT_TRUE(waits_for_longer_than_late_patience(late));
  EXPECT_TRUE(b_->finish());
  EXPECT_THROW(late.get(), FinishedError);
}

// It has been told to take part, and is lost before it has what the others have: its state is its own.
TEST_F(WaitingTest, ANewMemberWithoutTheStateIsNotRankZero) {
  begin_two(0);
  Meeting& c = come();
  auto waiting = next(c);
  next({a_, b_});
  EXPECT_EQ(Place(waiting.get()), (Place{2, 2, 3}));
  leave(*a_);
  auto of_c = next(c); // the round has failed; b has not noticed yet
  EXPECT_TRUE(waits_for_longer_than_late_patience(of_c));
  EXPECT_EQ(Place(b_->next_round()), (Place{3, 0, 2}));
  EXPECT_EQ(Place(of_c.get()), (Place{3, 1, 2}));
  c.settle();
  EXPECT_EQ(Place(c.next_round()), (Place{4, 0, 1})) << "it may go on without one that is late";
}

TEST_F(WaitingTest, WhoHasNothingLeftToDoWaitsForTheOneThatSaves) {
  begin_two(2);
  auto waiting = std::async(std::launch::async, [&] { return b_->wait_for_finish(0); });
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting));
  a_->finish();
  EXPECT_TRUE(waiting.get());
}

TEST_F(WaitingTest, WhoHasNothingLeftToDoTakesOverWhenTheOneThatSavesIsLost) {
  options_.min_ranks = 3;
  Meeting &a = come(), &b = come(), &c = come();
  next({&a, &b, &c});
  auto second = std::async(std::launch::async, [&] { return b.wait_for_finish(0); });
  auto third = std::async(std::launch::async, [&] { return c.wait_for_finish(0); });
  leave(a);
  EXPECT_FALSE(second.get());
  EXPECT_TRUE(waits_for_longer_than_late_patience(third));
  EXPECT_TRUE(b.finish());
  EXPECT_TRUE(third.get());
}

// One of those that wait takes over from a first one that lives and saves nothing, and no other.
TEST_F(WaitingTest, OneTakesOverFromAFirstOneThatHangs) {
  options_.min_ranks = 3;
  options_.patience = std::chrono::seconds(2);
  Meeting &a = come(), &b = come(), &c = come();
  next({&a, &b, &c});
  const auto waits = [](Meeting& of) { return std::async(std::launch::async, [&of] { return of.wait_for_finish(0); }); };
  auto second = waits(b), third = waits(c);
  EXPECT_FALSE(second.get());
  EXPECT_TRUE(waits_for_longer_than_late_patience(third));
  auto first = waits(a); // it was told that b saves
  EXPECT_TRUE(b.finish() && third.get() && first.get());
}

// A process that was killed when it had a number and no last will yet counted as living for ever.
TEST_F(WaitingTest, ANumberWithoutAProcessIsWaitedForByNobody) {
  connect()->add("elastic/ids", 1);
  begin_two(0);
  for (int64_t round = 2; round < 4; ++round) {
    const auto rounds = next({a_, b_});
    EXPECT_EQ(Place(rounds[0]), (Place{round, 0, 2}));
    EXPECT_FALSE(a_->changed());
  }
}

TEST_F(WaitingTest, WhoWaitsSaysForWhatOnce) {
  const std::string sentence = "round 1 has no room for more than 2 processes; this one waits until one of them is lost, or the training is finished";
  std::string lines;
  std::mutex mutex;
  log::set_sink([&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines += line;
  });
  const auto said = [&] {
    const std::lock_guard lock(mutex);
    return lines.find(sentence) != std::string::npos;
  };
  begin_two(2);
  Meeting& c = come();
  auto waiting = next(c);
  while (!said() && waits_for_longer_than_late_patience(waiting)) {
  }
  EXPECT_TRUE(waits_for_longer_than_late_patience(waiting)) << "and says it once";
  a_->finish();
  EXPECT_THROW(waiting.get(), FinishedError);
  log::set_sink(nullptr);
  EXPECT_THAT(lines, HasSubstr(sentence));
  EXPECT_EQ(lines.find(sentence), lines.rfind(sentence));
}

TEST_F(WaitingTest, TrainingsOfOneStoreFollowEachOther) {
  Meeting& a = come();
  EXPECT_EQ(Place(a.next_round()), (Place{1, 0, 1}));
  EXPECT_TRUE(a.finish());
  options_.training = 2;
  Meeting& b = come();
  EXPECT_EQ(Place(b.next_round()), (Place{1, 0, 1}));
}

class ConcludeTest : public MeetingTest {
 protected:
  ConcludeTest() {
    options_.max_ranks = 3; // which the first round waits for
    next({&come(), &come(), &come()});
  }
  std::future<bool> conclude(int member, bool well) {
    return std::async(std::launch::async, [one = meetings_[static_cast<size_t>(member)].get(), well] { return one->conclude(well); });
  }
};

TEST_F(ConcludeTest, IsGoodWhenAllSaySo) {
  for (int round = 0; round < 2; ++round) {
    auto a = conclude(0, true);
    auto b = conclude(1, true);
    EXPECT_NE(a.wait_for(std::chrono::milliseconds(200)), std::future_status::ready) << "one has not said anything";
    auto c = conclude(2, true);
    EXPECT_TRUE(a.get());
    EXPECT_TRUE(b.get());
    EXPECT_TRUE(c.get());
    next({meetings_[0].get(), meetings_[1].get(), meetings_[2].get()});
  }
}

TEST_F(ConcludeTest, IsBadForAllWhenOneSaysSo) {
  auto a = conclude(0, true);
  auto b = conclude(1, false);
  EXPECT_FALSE(b.get()); // it does not wait for anybody
  EXPECT_FALSE(a.get());
  EXPECT_FALSE(conclude(2, true).get());
}

// It may have had all that the round was for.
TEST_F(ConcludeTest, IsBadForAllWhenOneIsLost) {
  auto a = conclude(0, true);
  auto b = conclude(1, true);
  leave(*meetings_[2]);
  EXPECT_FALSE(a.get());
  EXPECT_FALSE(b.get());
  const auto rounds = next({meetings_[0].get(), meetings_[1].get()});
  EXPECT_EQ(Place(rounds[0]), (Place{2, 0, 2}));
}

TEST_F(MeetingTest, TooFewIsAnErrorInTheEnd) {
  options_.min_ranks = 3;
  options_.patience = std::chrono::milliseconds(60);
  EXPECT_THAT(error_of([&] { come().next_round(); }), HasSubstr("round 1 cannot begin: 1 of at least 3 ranks are there after"));
  options_.max_ranks = 2;
  EXPECT_THAT(error_of([&] { come(); }), HasSubstr("from 3 to 2 ranks"));
}

} // namespace
} // namespace trireme::store
