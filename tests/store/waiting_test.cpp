// Processes that wait: for members that train, for a loss, for the end of the training, and for those who are late.
#include "meeting_fixture.h"

#include <trireme/base/log.h>

#include <tests/support/peer_error.h>

#include <gmock/gmock.h>

#include <future>
#include <mutex>

namespace trireme::store {
namespace {

using testing::HasSubstr;
using trireme::test::error_of;

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

// The members come one after the other: patience counts from the first one's coming, not from that of one who has
// waited before.
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

// Its connection broke in a stretch: the store takes the process for gone, and one that is started again finds no
// member.
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
  const auto waits = [](Meeting& of) {
    return std::async(std::launch::async, [&of] { return of.wait_for_finish(0); });
  };
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
  const std::string sentence =
      "round 1 has no room for more than 2 processes; this one waits until one of them is lost, or the training is "
      "finished";
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

} // namespace
} // namespace trireme::store
