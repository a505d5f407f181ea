// Two starts of one job never run at the same time: a host runs ranks under a lease only.
#include "on_hosts.h"

#include <trireme/launch/lease.h>

#include <gmock/gmock.h>

#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

namespace trireme::launch {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class LeaseTest : public HostsTest {
 protected:
  LaunchOptions two_of_three(const std::vector<std::string>& steps, double heartbeat_timeout) const {
    LaunchOptions options = on_hosts(3, 1, steps);
    options.max_nodes = 2;
    options.max_restarts = 1;
    options.heartbeat_timeout = heartbeat_timeout;
    return options;
  }
  /// Nobody waits for ranks that are known to have ended.
  void lose_agent_by(int number) const {
    LaunchProcess launch(two_of_three({"*:pid", "1:stubborn", "*:await=go.%"}, 100), folder());
    wait_for_ranks(2);
    ::kill(agent_of_rank("pid.rank.1.0"), number);
    wait_for_ranks(2, 1);
    EXPECT_FALSE(is_running(pid_of("pid.rank.1.0")));
    touch("go.1");
    EXPECT_EQ(launch.wait(), 0) << launch.err();
    EXPECT_THAT(launch.err(), AllOf(HasSubstr("host b (rank 1) is lost"), Not(HasSubstr("may still run"))));
  }
};

// Whatever the delays and the rates of the clocks, the holder's end comes first.
TEST(Lease, EndsForItsHolderBeforeTheLauncherCountsOnIt) {
  std::mt19937 random(7);
  const auto seconds = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  for (int round = 0; round < 1000; ++round) {
    const double length = 3 + seconds(100);
    const double agents_rate = 0.9951 + seconds(0.0098); // of true time; the launcher's clock too
    const double launchers_rate = 0.9951 + seconds(0.0098);
    Lease lease(duration_cast<HostTime>(duration<double>(length)));
    GrantedLease granted(length);
    double now = 0;
    for (int beat = 0; beat < 20; ++beat) {
      const double asked = now;
      const double answered = asked + seconds(5);
      const duration<double> at_the_launcher(answered * launchers_rate);
      granted.answered(Clock::time_point() + duration_cast<Clock::duration>(at_the_launcher));
      // The answer arrives at any time, or never.
      lease.granted(duration_cast<HostTime>(duration<double>(asked * agents_rate)));
      now = answered + seconds(1);
    }
    const double held_until = duration<double>(lease.until() + kGuardianLater).count() / agents_rate;
    const double counted_until = duration<double>(granted.over_at()->time_since_epoch()).count() / launchers_rate;
    EXPECT_LT(held_until + 0.9, counted_until) << "the ranks have to end in the meantime";
  }
  EXPECT_FALSE(GrantedLease(5).over_at()) << "never granted";
}

TEST(Lease, AnAnswerThatComesLateDoesNotShortenIt) {
  Lease lease(HostTime(100));
  EXPECT_FALSE(lease.held(HostTime(0)));
  lease.granted(HostTime(50));
  lease.granted(HostTime(20));
  EXPECT_EQ(lease.until(), HostTime(150));
  EXPECT_TRUE(lease.held(HostTime(149)));
  EXPECT_FALSE(lease.held(HostTime(150)));
}

// The agent cannot end them: its guardian does.
TEST_F(LeaseTest, TheRanksOfAStoppedAgentHaveEndedBeforeOthersStart) {
  detach_agents();
  LaunchProcess launch(two_of_three({"*:pid", "*:child", "*:await=go.%"}, 2), folder());
  wait_for_ranks(2);
  ASSERT_TRUE(appears("pid.child.1.0"));
  const pid_t agent = agent_of_rank("pid.rank.1.0");
  ::kill(agent, SIGSTOP);
  wait_for_ranks(2, 1);
  EXPECT_FALSE(is_running(pid_of("pid.rank.1.0"))) << "two trainings at the same time";
  EXPECT_FALSE(is_running(pid_of("pid.child.1.0")));
  EXPECT_TRUE(is_running(agent));
  ::kill(agent, SIGCONT);
  EXPECT_TRUE(eventually([&] { return !is_running(agent); })) << "its own lease is over";
  touch("go.1");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("host b (rank 1) is lost: it has sent nothing for 2.00 s"),
                                  HasSubstr("ranks on host b may still run, until its lease ends")));
}

// The leases here are longer than these tests may take.
TEST_F(LeaseTest, AKilledAgentsGuardianSaysThatTheRanksAreGone) {
  detach_agents();
  lose_agent_by(SIGKILL);
}

TEST_F(LeaseTest, AnAgentThatIsAskedToEndSaysThatTheRanksAreGone) {
  detach_agents();
  lose_agent_by(SIGTERM);
}

TEST_F(LeaseTest, AgentsEndTheirRanksWithoutTheLauncher) {
  LaunchOptions options = on_hosts(2, 1, {"*:pid", "*:await=never"});
  options.heartbeat_timeout = 2;
  options.max_restarts = 1;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGSTOP);
  EXPECT_TRUE(eventually([&] { return !is_running(pid_of("pid.rank.0.0")) && !is_running(pid_of("pid.rank.1.0")); }));
  ::kill(launch.pid(), SIGCONT);
  EXPECT_TRUE(eventually([&] {
    return launch.err().find("no answer from the launcher for 6.00 s; the agent ends its ranks") != std::string::npos;
  })) << launch.err();
  ::kill(launch.pid(), SIGTERM);
  EXPECT_NE(launch.wait(), 0);
}

// Nothing would take their place.
TEST_F(LeaseTest, ALauncherThatIsHeldUpLosesNothingWhereNoRestartIsAllowed) {
  LaunchOptions options = on_hosts(2, 1, {"*:pid", "*:await=go"});
  options.heartbeat_timeout = 2;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(9)); // with restarts a lease would last 6 s
  ::kill(launch.pid(), SIGCONT);
  touch("go");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

} // namespace
} // namespace trireme::launch
