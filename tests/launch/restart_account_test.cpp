#include <trireme/launch/restart_account.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

namespace trireme::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TEST(RestartAccountTest, WithoutFailuresAllTimeIsUseful) {
  RestartAccount account({});
  account.started();
  ::usleep(1000);
  EXPECT_THAT(account.finish(), IsEmpty());
  EXPECT_EQ(account.ettr(), 1);
  EXPECT_GT(account.total_seconds(), 0);
}

TEST(RestartAccountTest, CountsWhatIsRedoneAndTheTimeUntilTheFirstStep) {
  std::optional<Progress> progress;
  RestartAccount account([&] { return progress; });
  account.started();
  ::usleep(20'000);
  progress = Progress{14, unix_seconds(), 4, 0.008};
  account.failed("rank 1 was killed by SIGKILL", 0.003);
  account.started();
  EXPECT_TRUE(account.waiting());
  EXPECT_THAT(account.look(), IsEmpty()) << "the last step is from before the failure";
  ::usleep(30'000);
  progress = Progress{11, unix_seconds(), 1, 0.002};
  const std::string words = account.look();
  EXPECT_THAT(words, HasSubstr("step 11 done"));
  EXPECT_THAT(words, HasSubstr("4 steps lost"));
  EXPECT_FALSE(account.waiting());
  EXPECT_THAT(account.look(), IsEmpty()) << "once";
  ::usleep(20'000);
  const std::string summary = account.finish();
  EXPECT_THAT(summary, HasSubstr("1 restart: "));
  EXPECT_THAT(summary, HasSubstr("4 steps redone"));
  ASSERT_EQ(account.restarts().size(), 1u);
  const Restart& restart = account.restarts().front();
  EXPECT_EQ(restart.cause, "rank 1 was killed by SIGKILL");
  EXPECT_GE(restart.down_seconds, 0.033);
  EXPECT_NEAR(restart.redone_seconds, 0.008, 0.02);
  EXPECT_NEAR(account.ettr(), 1 - (restart.down_seconds + restart.redone_seconds) / account.total_seconds(), 1e-9);
}

TEST(RestartAccountTest, AFailureBeforeTheFirstStepIsDownTime) {
  std::optional<Progress> progress;
  RestartAccount account([&] { return progress; });
  account.started();
  ::usleep(5'000);
  account.failed("first", 0);
  account.started();
  ::usleep(10'000);
  account.failed("second", 0);
  account.started();
  ::usleep(10'000);
  account.finish();
  ASSERT_EQ(account.restarts().size(), 2u);
  EXPECT_GE(account.restarts()[0].redone_seconds, 0.005) << "that start came to nothing";
  EXPECT_GE(account.restarts()[0].down_seconds, 0.010);
  EXPECT_EQ(account.restarts()[1].redone_seconds, 0) << "counted as down before";
  EXPECT_GE(account.restarts()[1].down_seconds, 0.010) << "it ended before a step";
}

TEST(RestartAccountTest, WithoutProgressOnlyTheStopCounts) {
  RestartAccount account({});
  account.started();
  ::usleep(10'000);
  account.failed("it", 0.002);
  ::usleep(5'000);
  account.started();
  EXPECT_FALSE(account.waiting());
  account.finish();
  ASSERT_EQ(account.restarts().size(), 1u);
  EXPECT_GE(account.restarts()[0].down_seconds, 0.007);
  EXPECT_EQ(account.restarts()[0].redone_seconds, 0);
}

} // namespace
} // namespace trireme::launch
