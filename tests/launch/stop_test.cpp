// The launcher itself is told to stop, or killed.
#include "launch_process.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/launch/descendants.h>
#include <trireme/launch/descriptor.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace trireme::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class StopTest : public LaunchTest {
 protected:
  void wait_for_ranks(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(appears(concat("pid.rank.", rank, ".0")));
    }
  }
  static pid_t guardian_of(pid_t launcher) {
    for (const pid_t pid : descendants(launcher)) {
      if (read_file(concat("/proc/", pid, "/comm")) == "trireme-guard\n") {
        return pid;
      }
    }
    return -1;
  }
};

TEST_F(StopTest, PassesOnWhatItIsTold) {
  const struct {
    int told;
    int passed_on;
    int exit_code;
  } cases[] = {{SIGINT, SIGINT, 130}, {SIGTERM, SIGTERM, 143}, {SIGHUP, SIGTERM, 129}};
  for (const auto& c : cases) {
    for (const pid_t pid : all_pids()) {
      ASSERT_FALSE(is_running(pid));
    }
    std::filesystem::remove_all(folder() / "logs");
    std::filesystem::remove(folder() / "pid.rank.0.0");
    std::filesystem::remove(folder() / "pid.rank.1.0");
    LaunchOptions options = probes(2, {"*:answer=15", "*:answer=2", "*:pid", "*:sleep=60000"});
    options.max_restarts = 3;
    LaunchProcess launch(options, folder());
    wait_for_ranks(2);
    ::kill(launch.pid(), c.told);
    EXPECT_EQ(launch.wait(), c.exit_code);
    EXPECT_EQ(launch.out(), concat("got ", c.passed_on, "\n"));
    EXPECT_EQ(log(1), concat("got ", c.passed_on, "\n"));
    EXPECT_THAT(launch.err(), IsEmpty());
    EXPECT_TRUE(nothing_runs());
  }
}

TEST_F(StopTest, RanksThatDieOfItAreNoFailure) {
  LaunchProcess launch(probes(2, {"*:pid", "*:child", "*:daemon", "*:sleep=60000"}), folder());
  ASSERT_TRUE(appears("pid.daemon.0.0"));
  ASSERT_TRUE(appears("pid.daemon.1.0"));
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143);
  EXPECT_THAT(launch.err(), IsEmpty());
  EXPECT_EQ(all_pids().size(), 6u);
  EXPECT_TRUE(nothing_runs());
}

TEST_F(StopTest, ASecondSignalKills) {
  LaunchOptions options = probes(2, {"*:stubborn", "*:pid", "*:sleep=60000"});
  options.grace_seconds = 1000;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGINT);
  ::usleep(400'000);
  EXPECT_TRUE(is_running(pid_of("pid.rank.0.0")));
  ::kill(launch.pid(), SIGINT);
  EXPECT_EQ(launch.wait(), 130);
  EXPECT_THAT(launch.err(), IsEmpty());
  EXPECT_TRUE(nothing_runs());
}

// timeout(1) signals a process and then its group. On a busy machine the two may come apart: one of five tries counts.
TEST_F(StopTest, TheSameSignalTwiceAtOnceIsOne) {
  bool survived = false;
  for (int round = 0; round < 5 && !survived; ++round) {
    LaunchOptions options = probes(1, {"*:stubborn", "*:pid", "*:sleep=60000"});
    options.grace_seconds = 1000;
    LaunchProcess launch(options, folder());
    wait_for_ranks(1);
    ::kill(launch.pid(), SIGTERM);
    ::usleep(30'000);
    ::kill(launch.pid(), SIGTERM);
    ::usleep(200'000);
    survived = is_running(pid_of("pid.rank.0.0"));
    ::usleep(200'000);
    ::kill(launch.pid(), SIGTERM);
    EXPECT_EQ(launch.wait(), 143);
    std::filesystem::remove(folder() / "pid.rank.0.0");
  }
  EXPECT_TRUE(survived);
}

// A shell with a trap waits for the program it runs: only a signal to both ends them in time.
TEST_F(StopTest, WrappersAndTheirProgramsAreTold) {
  LaunchOptions options = probes(1, {});
  options.command = {"/bin/sh", "-c",
                     R"(trap : TERM; sh -c 'echo $$ > "$PROBE_DIR/pid.child.0.0"; exec sleep 60'; exit 0)"};
  LaunchProcess launch(options, folder());
  ASSERT_TRUE(appears("pid.child.0.0"));
  ASSERT_TRUE(eventually([&] { return !read_file(folder() / "pid.child.0.0").empty(); }));
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143);
  EXPECT_THAT(launch.err(), Not(HasSubstr("did not end")));
}

TEST_F(StopTest, AfterTheGraceItKills) {
  LaunchOptions options = probes(2, {"1:stubborn", "*:pid", "*:sleep=60000"});
  options.grace_seconds = 0.2;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143);
  EXPECT_EQ(launch.err(), "[launch] rank 1 did not end within 200 ms of SIGTERM and was killed\n");
}

TEST_F(StopTest, UserSignalsReachAllRanks) {
  LaunchProcess launch(probes(2, {"*:answer=10", "*:pid", "*:await=go"}), folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGUSR1);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(eventually([&] { return log(rank) == "got 10\n"; })) << rank;
  }
  touch("go");
  EXPECT_EQ(launch.wait(), 0);
}

TEST_F(StopTest, NoHangupUnderNohup) {
  LaunchProcess launch(probes(2, {"*:pid", "*:await=go"}), folder(), [] { ::signal(SIGHUP, SIG_IGN); });
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGHUP);
  ::usleep(100'000);
  touch("go");
  EXPECT_EQ(launch.wait(), 0);
}

// A terminal of its own for the launcher; returns the other side.
class Terminal {
 public:
  Terminal() {
    int near = -1;
    int far = -1;
    EXPECT_EQ(::openpty(&near, &far, nullptr, nullptr, nullptr), 0);
    near_ = Descriptor(near);
    far_ = Descriptor(far);
  }
  void adopt() const {
    ::setsid();
    ::ioctl(far_.get(), TIOCSCTTY, 0);
  }
  void press_interrupt() const { EXPECT_EQ(::write(near_.get(), "\x03", 1), 1); }

 private:
  Descriptor near_;
  Descriptor far_;
};

TEST_F(StopTest, TheInterruptKeyStopsTheJob) {
  const Terminal terminal;
  LaunchProcess launch(probes(2, {"*:answer=2", "*:pid", "*:sleep=60000"}), folder(), [&] { terminal.adopt(); });
  wait_for_ranks(2);
  terminal.press_interrupt();
  EXPECT_EQ(launch.wait(), 130);
  EXPECT_EQ(launch.out(), "got 2\n") << "once, from the launcher";
}

// What a shell script starts with & ignores SIGINT: the key is not meant for it, kill -INT is.
TEST_F(StopTest, TheInterruptKeyDoesNotReachBackgroundJobs) {
  const Terminal terminal;
  LaunchProcess launch(probes(2, {"0:answer=2", "*:pid", "*:sleep=60000"}), folder(), [&] {
    terminal.adopt();
    ::signal(SIGINT, SIG_IGN);
  });
  wait_for_ranks(2);
  terminal.press_interrupt();
  ::usleep(100'000);
  EXPECT_TRUE(is_running(pid_of("pid.rank.0.0")));
  EXPECT_THAT(launch.out(), IsEmpty());
  ::kill(launch.pid(), SIGINT);
  EXPECT_EQ(launch.wait(), 130);
  EXPECT_EQ(launch.out(), "got 2\n");
  EXPECT_THAT(launch.err(), IsEmpty()) << "rank 1 inherits the ignoring";
}

// What a rank started may have moved to another session, and its rank may have ended long ago.
TEST_F(StopTest, NothingSurvivesAKilledLauncher) {
  for (int round = 0; round < 3; ++round) {
    LaunchProcess launch(probes(3, {"*:stubborn", "*:pid", "*:child", "*:daemon", "2:exit=0", "*:sleep=60000"}),
                         folder());
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(appears(concat("pid.daemon.", rank, ".0")));
    }
    EXPECT_TRUE(eventually([&] { return !is_running(pid_of("pid.rank.2.0")); }));
    EXPECT_TRUE(is_running(pid_of("pid.child.2.0")));
    EXPECT_TRUE(is_running(pid_of("pid.daemon.2.0")));
    EXPECT_EQ(all_pids().size(), 9u);
    ::kill(launch.pid(), SIGKILL);
    EXPECT_EQ(launch.wait(), 137);
    EXPECT_TRUE(eventually([&] { return bool(nothing_runs()); })) << nothing_runs().message();
    forget_pids();
  }
}

// Nor a killed guardian, which the launcher outlives.
TEST_F(StopTest, AKilledGuardianIsAFailureThatLeavesNothingBehind) {
  LaunchOptions options = probes(2, {"*:pid", "*:daemon", "*:await=go.%"});
  options.max_restarts = 1;
  LaunchProcess launch(options, folder());
  ASSERT_TRUE(appears("pid.daemon.0.0"));
  ASSERT_TRUE(appears("pid.daemon.1.0"));
  const pid_t guardian = guardian_of(launch.pid());
  ASSERT_GT(guardian, 0);
  ::kill(guardian, SIGKILL);
  ASSERT_TRUE(appears("pid.daemon.0.1"));
  ASSERT_TRUE(appears("pid.daemon.1.1"));
  for (const char* name : {"pid.rank.0.0", "pid.rank.1.0", "pid.daemon.0.0", "pid.daemon.1.0"}) {
    EXPECT_FALSE(is_running(pid_of(name))) << name;
  }
  touch("go.1");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr(concat("(trireme-guard, pid ", guardian, ") was killed")));
}

// When both are lost at once (the kernel's out-of-memory killer), the kernel still ends the ranks.
TEST_F(StopTest, WithoutLauncherAndGuardianRanksStillEnd) {
  LaunchProcess launch(probes(2, {"*:stubborn", "*:pid", "*:sleep=60000"}), folder());
  wait_for_ranks(2);
  const pid_t guardian = guardian_of(launch.pid());
  ASSERT_GT(guardian, 0);
  ::kill(guardian, SIGSTOP);
  ::kill(launch.pid(), SIGKILL);
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_TRUE(is_running(pid_of("pid.rank.1.0")));
  ::kill(guardian, SIGKILL);
  EXPECT_TRUE(eventually([&] { return bool(nothing_runs()); }));
}

// A guardian that somebody stopped cannot hold up the end of a job.
TEST_F(StopTest, AStoppedGuardianGoesOn) {
  LaunchProcess launch(probes(1, {"*:pid", "*:daemon", "*:sleep=60000"}), folder());
  ASSERT_TRUE(appears("pid.daemon.0.0"));
  const pid_t guardian = guardian_of(launch.pid());
  ASSERT_GT(guardian, 0);
  ::kill(guardian, SIGSTOP);
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143);
  EXPECT_TRUE(nothing_runs());
}

// On a file system that does not answer, exec() does not come back. Here it waits for a permission that nobody gives.
TEST_F(StopTest, AJobWhoseProgramDoesNotStartCanBeStopped) {
  const std::filesystem::path program = folder() / "program";
  std::filesystem::copy_file(LAUNCH_PROBE, program);
  const Descriptor watch(::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY));
  if (!watch || ::fanotify_mark(watch.get(), FAN_MARK_ADD, FAN_OPEN_EXEC_PERM, AT_FDCWD, program.c_str()) != 0) {
    GTEST_SKIP() << "fanotify is not allowed here";
  }
  for (const int number : {SIGTERM, SIGKILL}) {
    LaunchOptions options = probes(2, {"*:pid"});
    options.command.front() = program;
    LaunchProcess launch(options, folder());
    pollfd asked = {watch.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&asked, 1, 30'000), 1);
    fanotify_event_metadata event{};
    ASSERT_GE(::read(watch.get(), &event, sizeof event), static_cast<ssize_t>(sizeof event));
    ::close(event.fd);
    ::kill(launch.pid(), number);
    EXPECT_EQ(launch.wait(), 128 + number) << launch.err();
    EXPECT_TRUE(eventually([&] { return !is_running(event.pid); })) << "the process that would become the rank";
  }
}

TEST_F(StopTest, TheLifelineShowsThatTheLauncherIsGone) {
  LaunchProcess launch(probes(1, {"*:env=TRIREME_LIFELINE_FD", "*:pid", "*:sleep=60000"}), folder());
  wait_for_ranks(1);
  ASSERT_TRUE(eventually([&] { return log(0).ends_with('\n'); }))
      << "the launcher copies the rank's line a little later";
  const std::string line = log(0);
  const Descriptor lifeline(
      ::open(concat("/proc/", pid_of("pid.rank.0.0"), "/fd/", std::stoi(line.substr(line.find('=') + 1))).c_str(),
             O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(lifeline);
  pollfd polled = {lifeline.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 0), 0) << "it lives";
  ::kill(launch.pid(), SIGKILL);
  EXPECT_EQ(launch.wait(), 137);
  char byte = 0;
  EXPECT_EQ(::read(lifeline.get(), &byte, 1), 0) << "end of file";
  EXPECT_TRUE(eventually([&] { return bool(nothing_runs()); }));
}

// Ranks that save when they are told: the children they work with must live until then.
TEST_F(StopTest, PreemptibleRanksMaySaveAndEndWith0) {
  for (const int number : {SIGTERM, SIGUSR1, SIGHUP}) {
    std::filesystem::remove_all(folder() / "logs");
    for (const char* name : {"pid.rank.0.0", "pid.rank.1.0", "pid.child.0.0", "pid.child.1.0"}) {
      std::filesystem::remove(folder() / name);
    }
    LaunchOptions options =
        probes(2, {"*:child", number == SIGUSR1 ? "*:finish=10" : "*:answer=15", "*:pid", "*:sleep=60000"});
    options.preemptible = true;
    LaunchProcess launch(options, folder());
    wait_for_ranks(2);
    ::kill(launch.pid(), number);
    EXPECT_EQ(launch.wait(), 0) << number;
    EXPECT_EQ(log(1), number == SIGUSR1 ? "got 10\n" : "got 15\n");
    EXPECT_THAT(launch.err(), IsEmpty());
  }
}

TEST_F(StopTest, APreemptibleJobThatCannotSaveSaysSo) {
  LaunchOptions options = probes(2, {"0:answer=15", "*:pid", "*:sleep=60000"});
  options.preemptible = true;
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143) << "rank 1 did not end with 0";
}

// A signal in the first moments finds ranks that cannot answer yet, or none.
TEST_F(StopTest, APreemptibleJobThatHasNotBegunIsStoppedAsAsked) {
  LaunchOptions options = probes(2, {"0:answer=15", "*:pid", "*:sleep=60000"});
  options.preemptible = true;
  options.progress = [] { return std::nullopt; };
  LaunchProcess launch(options, folder());
  wait_for_ranks(2);
  ::kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 0);
  options.progress = [] { return std::optional(Progress{.step = 7, .stepped_at = 1e12}); };
  std::filesystem::remove(folder() / "pid.rank.0.0");
  std::filesystem::remove(folder() / "pid.rank.1.0");
  LaunchProcess other(options, folder());
  wait_for_ranks(2);
  ::kill(other.pid(), SIGTERM);
  EXPECT_EQ(other.wait(), 143) << "a step is done, and rank 1 did not save it";
}

// After a failure there is nothing to save: SIGTERM would only make the others wait for the one that is gone.
TEST_F(StopTest, PreemptibleRanksEndAtOnceAfterAFailure) {
  LaunchOptions options = probes(2, {"0:answer=15", "0:pid", "1:await=pid.rank.0.0", "1:exit=4", "0:sleep=60000"});
  options.preemptible = true;
  options.grace_seconds = 1000;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_EQ(launch.out(), "") << "ended by SIGINT, which it does not answer";
}

} // namespace
} // namespace trireme::launch
