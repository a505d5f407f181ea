#include <trireme/monitor/straggler.h>

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace trireme::monitor {
namespace {

// Four ranks that meet in every step: whoever needs longest waits for nobody.
using Change = std::function<void(StepShare&, int rank, int step)>;
std::vector<std::vector<StepShare>> steps(int count, double noise, const Change& change = nullptr) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> jitter(0, noise);
  std::vector<std::vector<StepShare>> by_rank(4);
  for (int step = 0; step < count; ++step) {
    std::vector<StepShare> now;
    double longest = 0;
    for (int rank = 0; rank < 4; ++rank) {
      StepShare share{0.001, 0.010 + jitter(random), 0.020 + jitter(random), 0.002, 0, 0};
      if (change) {
        change(share, rank, step);
      }
      share.total = share.data + share.forward + share.backward + share.optimizer;
      longest = std::max(longest, share.total);
      now.push_back(share);
    }
    for (int rank = 0; rank < 4; ++rank) {
      now[rank].wait = longest - now[rank].total;
      now[rank].total = longest;
      by_rank[rank].push_back(now[rank]);
    }
  }
  return by_rank;
}

TEST(StragglerTest, ACleanRunGivesNoAlarm) {
  EXPECT_FALSE(find_straggler(steps(16, 0)));
  EXPECT_FALSE(find_straggler(steps(16, 0.01)));
  EXPECT_FALSE(find_straggler({}));
  EXPECT_FALSE(find_straggler(std::vector<std::vector<StepShare>>(4)));
}

TEST(StragglerTest, ASlowBackwardIsNamed) {
  const auto found =
      find_straggler(steps(16, 0.002, [](StepShare& share, int rank, int) { share.backward *= rank == 2 ? 2 : 1; }));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->phase, "backward");
  EXPECT_NEAR(found->speed, 0.5, 0.06);
  EXPECT_EQ(found->last_share, 1);
  EXPECT_EQ(describe(Straggler{2, 0.9375, 1.62, "backward", 0.484, 16}, 6),
            "rank 6 arrives last in 94 % of the last 16 steps: 0.48x of the fastest in backward, 1.6 times its time "
            "for a step");
}

TEST(StragglerTest, LatenessCountsNotDuration) {
  // Rank 1 has the longest steps by the clock of its communication: it waits for rank 0.
  const auto found =
      find_straggler(steps(16, 0.002, [](StepShare& share, int rank, int) { share.data += rank == 0 ? 0.03 : 0; }));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 0);
  EXPECT_EQ(found->phase, "data");
}

TEST(StragglerTest, OnceInAWhileOrALittleIsNone) {
  const Change now_and_then = [](StepShare& share, int rank, int step) {
    share.forward += rank == 1 && step % 3 == 0 ? 0.1 : 0;
  };
  EXPECT_FALSE(find_straggler(steps(16, 0.002, now_and_then)));
  EXPECT_FALSE(
      find_straggler(steps(16, 0, [](StepShare& share, int rank, int) { share.forward *= rank == 1 ? 1.5 : 1; })));
  // Twice as slow, but microseconds only.
  EXPECT_FALSE(find_straggler(
      steps(16, 0, [](StepShare& share, int rank, int) { share = {0, 1e-4, rank == 1 ? 4e-4 : 1e-4, 0, 0, 0}; })));
}

} // namespace
} // namespace trireme::monitor
