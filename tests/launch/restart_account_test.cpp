#include <trireme/launch/restart_account.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// A clock that goes when it is told to; on its wall hangs another one that shows 1,000,000 s more.
class RestartAccountTest : public testing::Test {
 protected:
  RestartAccount::Clocks clocks() {
    return {[this] { return unix_seconds(); }, [this] { return now_; }};
  }
  double unix_seconds() const { return 1e6 + now_; }
  void pass(double seconds) { now_ += seconds; }

 private:
  double now_ = 100;
};

constexpr double kClose = 1e-9;

TEST_F(RestartAccountTest, WithoutFailuresAllTimeIsUseful) {
  RestartAccount account({}, clocks());
  account.started();
  pass(7);
  EXPECT_THAT(account.finish(), IsEmpty());
  EXPECT_EQ(account.ettr(), 1);
  EXPECT_NEAR(account.total_seconds(), 7, kClose);
}

TEST_F(RestartAccountTest, CountsWhatIsRedoneAndTheTimeUntilTheFirstStep) {
  std::optional<Progress> progress;
  RestartAccount account([&] { return progress; }, clocks());
  account.started();
  pass(20);
  progress = Progress{14, unix_seconds(), 4, 8};
  pass(5);
  account.failed("rank 1 was killed by SIGKILL", 3);
  account.started();
  EXPECT_TRUE(account.waiting());
  EXPECT_THAT(account.look(), IsEmpty()) << "the last step is from before the failure";
  pass(30);
  progress = Progress{11, unix_seconds(), 1, 2};
  pass(1);
  const std::string words = account.look();
  EXPECT_THAT(words, HasSubstr("step 11 done"));
  EXPECT_THAT(words, HasSubstr("4 steps lost"));
  EXPECT_FALSE(account.waiting());
  EXPECT_THAT(account.look(), IsEmpty()) << "once";
  pass(44);
  const std::string summary = account.finish();
  EXPECT_THAT(summary, HasSubstr("1 restart: 57.0 % of"));
  EXPECT_THAT(summary, HasSubstr("4 steps redone"));
  ASSERT_EQ(account.restarts().size(), 1u);
  const Restart& restart = account.restarts().front();
  EXPECT_EQ(restart.cause, "rank 1 was killed by SIGKILL");
  EXPECT_NEAR(restart.noticed_at, 1e6 + 122, kClose);
  EXPECT_NEAR(restart.down_seconds, 33, kClose) << "from the failure to the first step";
  EXPECT_NEAR(restart.redone_seconds, 8 + 2, kClose) << "what was not saved, and what was under way";
  EXPECT_NEAR(account.total_seconds(), 100, kClose);
  EXPECT_NEAR(account.ettr(), 0.57, kClose);
}

TEST_F(RestartAccountTest, AFailureBeforeTheFirstStepIsDownTime) {
  std::optional<Progress> progress;
  RestartAccount account([&] { return progress; }, clocks());
  account.started();
  pass(5);
  account.failed("first", 0);
  account.started();
  pass(10);
  account.failed("second", 0);
  account.started();
  pass(11);
  account.finish();
  ASSERT_EQ(account.restarts().size(), 2u);
  EXPECT_NEAR(account.restarts()[0].redone_seconds, 5, kClose) << "that start came to nothing";
  EXPECT_NEAR(account.restarts()[0].down_seconds, 10, kClose);
  EXPECT_EQ(account.restarts()[1].redone_seconds, 0) << "counted as down before";
  EXPECT_NEAR(account.restarts()[1].down_seconds, 11, kClose) << "it ended before a step";
}

TEST_F(RestartAccountTest, WithoutProgressOnlyTheStopCounts) {
  RestartAccount account({}, clocks());
  account.started();
  pass(10);
  account.failed("it", 2);
  pass(5);
  account.started();
  EXPECT_FALSE(account.waiting());
  account.finish();
  ASSERT_EQ(account.restarts().size(), 1u);
  EXPECT_NEAR(account.restarts()[0].down_seconds, 7, kClose);
  EXPECT_EQ(account.restarts()[0].redone_seconds, 0);
}

TEST(RestartClocksTest, AreThoseOfThisMachine) {
  const auto clocks = RestartAccount::Clocks::of_this_machine();
  EXPECT_GT(clocks.unix_seconds(), 1.7e9);
  const double before = clocks.steady_seconds();
  EXPECT_LE(before, clocks.steady_seconds());
}

} // namespace
} // namespace trireme::launch
