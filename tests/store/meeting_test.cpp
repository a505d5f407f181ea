// Processes that come and go agree on who takes part in a round, and on the order of their ranks.
#include "meeting_fixture.h"

#include <tests/support/peer_error.h>

#include <gmock/gmock.h>

#include <future>
#include <vector>

namespace trireme::store {
namespace {

using testing::HasSubstr;
using trireme::test::error_of;

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

class ConcludeTest : public MeetingTest {
 protected:
  ConcludeTest() {
    options_.max_ranks = 3; // which the first round waits for
    next({&come(), &come(), &come()});
  }
  std::future<bool> conclude(int member, bool well) {
    return std::async(std::launch::async,
                      [one = meetings_[static_cast<size_t>(member)].get(), well] { return one->conclude(well); });
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
  EXPECT_THAT(error_of([&] { come().next_round(); }),
              HasSubstr("round 1 cannot begin: 1 of at least 3 ranks have joined after"));
  options_.max_ranks = 2;
  EXPECT_THAT(error_of([&] { come(); }), HasSubstr("from 3 to 2 ranks"));
}

} // namespace
} // namespace trireme::store
