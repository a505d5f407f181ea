// When a rank that waits looks again, yields or sleeps; the clock is the test's.
#include <trireme/comm/shm/patience.h>

#include <gtest/gtest.h>

namespace trireme::comm::shm {
namespace {

using Step = Patience::Step;
using std::chrono::microseconds;

class PatienceTest : public testing::Test {
 protected:
  /// How many steps of this kind come in a row when each takes `time`.
  int count(Patience& patience, Step step, microseconds time) {
    int steps = 0;
    while (steps < 10'000 && patience.next([&] { return now_; }) == step) {
      now_ += time;
      ++steps;
    }
    return steps;
  }

  Patience::Clock::time_point now_{};
};

TEST_F(PatienceTest, YieldsForAsLongAsAWakeUpCosts) {
  Patience crowded(true);
  EXPECT_EQ(count(crowded, Step::yield, microseconds(2)), Patience::kAwake / microseconds(2)) << "however many that are: the others may be that slow";
  EXPECT_EQ(count(crowded, Step::sleep, microseconds(2)), 10'000);
}

TEST_F(PatienceTest, SleepsAfterAYieldThatWasAnsweredBySomebodyWhoComputes) {
  Patience crowded(true);
  EXPECT_EQ(count(crowded, Step::yield, microseconds(3000)), 1);
}

TEST_F(PatienceTest, LooksFirstWhereEveryRankHasACore) {
  Patience alone(false);
  EXPECT_EQ(count(alone, Step::look, microseconds(0)), Patience::kLooks);
  EXPECT_EQ(alone.next([&] { return now_; }), Step::yield);
}

TEST_F(PatienceTest, WorkBeginsItAnew) {
  Patience crowded(true);
  count(crowded, Step::yield, microseconds(50));
  EXPECT_EQ(crowded.next([&] { return now_; }), Step::sleep);
  crowded.worked();
  EXPECT_EQ(crowded.next([&] { return now_; }), Step::yield);
}

} // namespace
} // namespace trireme::comm::shm
