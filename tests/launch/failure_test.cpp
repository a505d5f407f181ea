// A rank fails: who is named, what is stopped, what is started again.
#include "launch_process.h"

#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <signal.h>

namespace trireme::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

class FailureTest : public LaunchTest {
 protected:
  static std::string without_numbers(std::string text) {
    std::string plain;
    for (const char c : text) {
      if (c >= '0' && c <= '9') {
        plain += plain.ends_with('#') ? "" : "#";
      } else {
        plain += c;
      }
    }
    return plain;
  }
};

TEST_F(FailureTest, NamesTheRankAndItsLastWords) {
  LaunchProcess launch(
      probes(3, {"*:pid", "1:lines=30", "1:err=ValueError: no such column", "1:exit=3", "*:sleep=60000"}), folder());
  EXPECT_EQ(launch.wait(), 3);
  const std::string err = launch.err();
  EXPECT_THAT(err, StartsWith(concat("[launch] rank 1 ended with exit code 3 (pid ", pid_of("pid.rank.1.0"), ") ")));
  EXPECT_THAT(err, HasSubstr(" after start\n[launch] | line 12\n")) << "20 lines";
  EXPECT_THAT(err, HasSubstr("[launch] | line 30\n[launch] | ValueError: no such column\n"));
  EXPECT_THAT(err, HasSubstr(concat("[launch] all it wrote: ", (folder() / "logs/rank1.log").string(), "\n")));
  EXPECT_THAT(launch.out(), IsEmpty());
  EXPECT_TRUE(nothing_runs());
}

TEST_F(FailureTest, WhatWasShownIsNotRepeated) {
  LaunchProcess launch(probes(2, {"0:err=my last words\n", "0:exit=7", "1:sleep=60000"}), folder());
  EXPECT_EQ(launch.wait(), 7);
  EXPECT_THAT(
      launch.err(),
      MatchesRegex("my last words\n\\[launch\\] rank 0 ended with exit code 7 \\(pid [0-9]+\\) [^\n]* after start\n"
                   "\\[launch\\] all it wrote: [^\n]*/rank0.log\n"));
}

TEST_F(FailureTest, AKilledRankEndsTheOthers) {
  LaunchProcess launch(probes(3, {"*:pid", "*:sleep=60000"}), folder());
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(appears(concat("pid.rank.", rank, ".0")));
  }
  ::kill(pid_of("pid.rank.2.0"), SIGKILL);
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_THAT(launch.err(),
              StartsWith(concat("[launch] rank 2 was killed by SIGKILL (pid ", pid_of("pid.rank.2.0"), ") ")));
  EXPECT_TRUE(nothing_runs());
}

// Two ends at once, seen only afterwards: the launcher itself is stopped meanwhile.
TEST_F(FailureTest, AKillIsTheCauseAnExitCodeTheConsequence) {
  LaunchProcess launch(probes(2, {"*:pid", "*:await=go", "0:exit=1", "1:kill=11"}), folder());
  ASSERT_TRUE(appears("pid.rank.0.0"));
  ASSERT_TRUE(appears("pid.rank.1.0"));
  ::kill(launch.pid(), SIGSTOP);
  touch("go");
  EXPECT_TRUE(eventually([this] { return bool(nothing_runs()); }));
  ::kill(launch.pid(), SIGCONT);
  EXPECT_EQ(launch.wait(), 139);
  EXPECT_THAT(launch.err(), StartsWith("[launch] rank 1 was killed by SIGSEGV"));
}

TEST_F(FailureTest, ASigbusComesWithItsUsualCause) {
  LaunchProcess launch(probes(2, {"0:sleep=60000", "1:kill=7"}), folder());
  EXPECT_EQ(launch.wait(), 135);
  EXPECT_THAT(launch.err(), AllOf(StartsWith("[launch] rank 1 was killed by SIGBUS"),
                                  HasSubstr("a file that it had mapped was cut, or its disk failed"),
                                  HasSubstr("Restore the file and continue from the last checkpoint")));
}

// The error that rank 0 gets is there before rank 1 has ended: it waits for its threads, or for its core dump.
TEST_F(FailureTest, TheRankThatTheErrorNamesIsTheCause) {
  const std::string error =
      "[comm] barrier #2 in group \"world\" failed on rank 0 of 3: rank 1 has ended with an error: see its output. "
      "Look at the output of rank 1.\n";
  LaunchProcess launch(probes(3, {"1:err=terminate called after throwing an instance of 'c10::Error'\n  what():  "
                                  "shapes differ\nframe #0: f\nframe #1: g\n",
                                  "1:pid", "0:await=pid.rank.1.0", "0:err=" + error, "0:exit=1", "1:sleep=700",
                                  "1:kill=6", "2:sleep=60000"}),
                       folder());
  EXPECT_EQ(launch.wait(), 134);
  EXPECT_THAT(
      launch.err(),
      AllOf(HasSubstr("[launch] rank 1 was killed by SIGABRT (pid "), HasSubstr(" after start: shapes differ\n"),
            HasSubstr("[launch] |   what():  shapes differ\n[launch] | frame #0: f (and 1 more frame)\n"),
            Not(HasSubstr("[launch] rank 0"))));
}

// It had warned of rank 0, but ended by an error of its own.
TEST_F(FailureTest, AnOwnErrorIsTheCauseWhateverWasWarnedBefore) {
  const std::string warning =
      "1:err=[rank 1] warning: [comm] barrier #2 waits for 60 s: rank 0 has not come. Look at the output of rank 0.\n";
  const std::string own = "1:err=[rank 1] error: [data] train.bin cannot be read: I/O error.\n";
  const std::string shown = ": [data] train.bin cannot be read: I/O error.\n";
  {
    LaunchProcess launch(probes(2, {"0:pid", "1:await=pid.rank.0.0", warning, own, "1:exit=5", "0:sleep=300",
                                    "0:err=[comm] barrier #2 failed on rank 0 of 2: rank 1 has ended with an error. "
                                    "Look at the output of rank 1.\n",
                                    "0:exit=1"}),
                         folder());
    EXPECT_EQ(launch.wait(), 5);
    EXPECT_THAT(launch.err(), AllOf(HasSubstr("[launch] rank 1 ended with exit code 5"), HasSubstr(shown),
                                    Not(HasSubstr("[launch] rank 0"))));
  }
  const auto start = std::chrono::steady_clock::now();
  LaunchProcess launch(probes(2, {warning, own, "1:exit=5", "0:sleep=60000"}), folder());
  EXPECT_EQ(launch.wait(), 5);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4)) << "nobody is waited for";
  EXPECT_THAT(launch.err(), AllOf(HasSubstr(shown), Not(HasSubstr("still runs"))));
}

// As README's program does.
TEST_F(FailureTest, TheExceptionOfLibtorchThatMainPrintsIsSaid) {
  LaunchProcess launch(probes(2, {"1:err=shapes differ (2x5 and 4x1)\nException raised from meta at "
                                  "LinearAlgebra.cpp:194 (most recent call first):\nframe #0: f\nframe #1: g\n\n",
                                  "1:exit=1", "0:sleep=60000"}),
                       folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_THAT(launch.err(), HasSubstr(" after start: shapes differ (2x5 and 4x1)\n"));
}

TEST_F(FailureTest, ErrorsAreFollowedToTheirEnd) {
  LaunchProcess launch(
      probes(4, {"*:pid", "3:await=pid.rank.0.0",
                 "3:err=[comm] send failed on rank 3 of 4: rank 2 does not answer. Look at the output of rank 2.\n",
                 "3:exit=1", "2:sleep=300",
                 "2:err=[comm] send failed on rank 2 of 4: rank 1 does not answer. Look at the output of rank 1.\n",
                 "2:exit=1", "1:sleep=600", "1:kill=9", "0:sleep=60000"}),
      folder());
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_THAT(launch.err(), AllOf(StartsWith("[launch] rank 1 was killed by SIGKILL (pid "), Not(HasSubstr("rank 2")),
                                  Not(HasSubstr("rank 3"))));
}

// A rank that was stopped and goes on finds the others gone.
TEST_F(FailureTest, OfTwoThatBlameEachOtherTheFirstIsShown) {
  LaunchProcess launch(
      probes(2, {"1:pid", "0:await=pid.rank.1.0",
                 "0:err=[comm] send failed on rank 0 of 2: rank 1 is stopped. Look at the output of rank 1.\n",
                 "0:exit=1", "1:sleep=300",
                 "1:err=[comm] rank 0, which hosts the rendezvous, has ended. Look at the output of rank 0.\n",
                 "1:exit=1"}),
      folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("[launch] rank 0 ended with exit code 1 (pid "),
                                  Not(HasSubstr("[launch] rank 1 ended"))));
}

TEST_F(FailureTest, ARankThatRunsOnAfterTheOthersIsSaidOnce) {
  LaunchProcess launch(probes(2, {"1:sleep=1500"}), folder(), [] { setenv("TRIREME_WARN_AFTER", "0.5", 1); });
  EXPECT_EQ(launch.wait(), 0);
  const std::string err = launch.err();
  EXPECT_THAT(err,
              AllOf(StartsWith("[launch] rank 1 still runs, "), HasSubstr(" after the first one has ended; if it is "
                                                                          "stopped, kill -CONT continues it; ")));
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

// Those of gloo do not know whose connection was lost.
TEST_F(FailureTest, ALostConnectionIsNotTheCause) {
  const std::string lost =
      "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711\n";
  LaunchProcess launch(
      probes(3, {"0:err=" + lost, "0:exit=1", "2:sleep=200", "2:err=" + lost, "2:exit=1", "1:sleep=700",
                 "1:err=Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 7\n", "1:exit=3"}),
      folder());
  EXPECT_EQ(launch.wait(), 3);
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("[launch] rank 1 ended with exit code 3 (pid "),
                                  HasSubstr(" after start: KeyError: 7\n")));
}

// It hangs, so the error says more than it does.
TEST_F(FailureTest, ARankThatRunsOnIsOnlyNamed) {
  const auto start = std::chrono::steady_clock::now();
  LaunchProcess launch(probes(2, {"1:sleep=60000",
                                  "0:err=[comm] recv is not done after 60 s on rank 0 of 2: rank 1 has not come. Look "
                                  "at what rank 1 is doing instead.\n",
                                  "0:exit=1"}),
                       folder());
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("[launch] rank 0 ended with exit code 1 (pid "),
                                  HasSubstr(concat("[launch] rank 1, which it names, still runs; all it wrote: ",
                                                   (folder() / "logs/rank1.log").string(), "\n"))));
}

// Its exit code says that nothing is to be tried again.
TEST_F(FailureTest, WrongInputOfTheRankThatTheErrorNames) {
  LaunchOptions options = probes(
      2, {"1:pid", "0:await=pid.rank.1.0",
          "0:err=[comm] barrier failed on rank 0 of 2: rank 1 has ended with an error. Look at the output of rank 1.\n",
          "0:exit=1", "1:sleep=400", "1:err=shard 1 is missing\n", "1:exit=2"});
  options.max_restarts = 3;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("[launch] rank 1 ended with exit code 2: shard 1 is missing\n"),
                                  Not(HasSubstr("starting all ranks again"))));
}

TEST_F(FailureTest, TheOthersMayTidyUp) {
  LaunchProcess launch(probes(2, {"0:answer=15", "0:pid", "1:await=pid.rank.0.0", "1:exit=4", "0:sleep=60000"}),
                       folder());
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_EQ(launch.out(), "got 15\n");
  EXPECT_THAT(launch.err(), Not(HasSubstr("did not end")));
}

TEST_F(FailureTest, AStubbornRankIsKilled) {
  LaunchOptions options = probes(2, {"0:stubborn", "0:pid", "1:await=pid.rank.0.0", "1:exit=4", "0:sleep=60000"});
  options.grace_seconds = 0.2;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_THAT(launch.err(), HasSubstr("[launch] rank 0 did not end within 200 ms of SIGTERM and was killed\n"));
}

// Some parents start programs with SIGCHLD ignored, which throws exit codes away.
TEST_F(FailureTest, IsNoticedWhateverTheParentIgnores) {
  LaunchProcess launch(probes(2, {"1:exit=3", "0:sleep=60000"}), folder(), [] { ::signal(SIGCHLD, SIG_IGN); });
  EXPECT_EQ(launch.wait(), 3);
}

TEST_F(FailureTest, AStoppedRankEndsToo) {
  LaunchProcess launch(probes(2, {"*:pid", "0:kill=19", "1:await=go", "1:exit=4"}), folder());
  ASSERT_TRUE(appears("pid.rank.0.0"));
  ASSERT_TRUE(appears("pid.rank.1.0"));
  touch("go");
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_THAT(launch.err(), Not(HasSubstr("did not end")));
}

TEST_F(FailureTest, ChildrenOfRanksEndWithThem) {
  LaunchProcess launch(probes(2, {"*:child", "*:daemon", "1:await=pid.daemon.0.0", "1:exit=5", "0:sleep=60000"}),
                       folder());
  EXPECT_EQ(launch.wait(), 5);
  EXPECT_EQ(all_pids().size(), 4u);
  EXPECT_TRUE(nothing_runs());
}

TEST_F(FailureTest, ChildrenDoNotOutliveASuccessEither) {
  LaunchProcess launch(probes(2, {"*:child", "*:daemon"}), folder());
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(all_pids().size(), 4u);
  EXPECT_TRUE(nothing_runs());
}

// Exit code 2 means that the user's input is wrong.
TEST_F(FailureTest, WrongInputIsSaidOnce) {
  LaunchOptions options = probes(2, {"*:err=run.json:3:14: \"stepz\" is unknown\n", "*:exit=2"});
  options.max_restarts = 3;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_EQ(launch.err(), "run.json:3:14: \"stepz\" is unknown\n");
}

TEST_F(FailureTest, WrongInputOfAnotherRankIsSaidInOneLine) {
  LaunchProcess launch(probes(2, {"1:err=usage: x\nshard 1 is missing\n", "1:exit=2", "*:sleep=60000"}), folder());
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_EQ(launch.err(), "[launch] rank 1 ended with exit code 2: shard 1 is missing\n");
}

TEST_F(FailureTest, RankZeroMaySayItLater) {
  LaunchProcess launch(probes(2, {"1:exit=2", "0:sleep=100", "0:err=the file is empty\n", "0:exit=2"}), folder());
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_EQ(launch.err(), "the file is empty\n");
}

TEST_F(FailureTest, StartsAllAgain) {
  LaunchOptions options =
      probes(2, {"*:env=TORCHELASTIC_RESTART_COUNT", "*:env=TORCHELASTIC_MAX_RESTARTS", "*:env=TRIREME_RESTART",
                 "*:child", "*:pid", "1:await=pid.rank.0.%", "1:exit=3", "0:sleep=60000"});
  options.max_restarts = 2;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 3);
  EXPECT_EQ(launch.out(),
            "TORCHELASTIC_RESTART_COUNT=0\nTORCHELASTIC_MAX_RESTARTS=2\nTRIREME_RESTART is not set\n"
            "TORCHELASTIC_RESTART_COUNT=1\nTORCHELASTIC_MAX_RESTARTS=2\nTRIREME_RESTART=1\n"
            "TORCHELASTIC_RESTART_COUNT=2\nTORCHELASTIC_MAX_RESTARTS=2\nTRIREME_RESTART=1\n");
  const std::string err = without_numbers(launch.err());
  const std::string again = "[launch] starting all ranks again: attempt # of # (the last one ran ";
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("attempt 2 of 3"), HasSubstr("attempt 3 of 3"),
                                  HasSubstr("giving up after attempt 3 of 3\n")));
  EXPECT_NE(err.find(again), std::string::npos) << err;
  EXPECT_THAT(log(1), HasSubstr(", attempt 2 of 3 ----\n"));
  EXPECT_TRUE(nothing_runs());
}

TEST_F(FailureTest, ARestartThatWorksIsASuccess) {
  LaunchOptions options = probes(2, {});
  options.command = {"/bin/sh", "-c",
                     R"(test "$TRIREME_RESTART" = 1 && exit 0; test $RANK = 1 && kill -9 $$; sleep 60)"};
  options.max_restarts = 1;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("rank 1 was killed by SIGKILL"), HasSubstr("attempt 2 of 2"),
                                  Not(HasSubstr("giving up"))));
}

TEST_F(FailureTest, EachStartHasItsOwnSocketAndOneRunId) {
  LaunchOptions options = probes(1, {"*:env=TRIREME_RUN_ID", "*:fds", "*:exit=3"});
  options.max_restarts = 1;
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 3);
  const std::string out = launch.out();
  const std::string half = out.substr(0, out.size() / 2);
  EXPECT_EQ(out, half + half) << "same run, same number of descriptors";
}

} // namespace
} // namespace trireme::launch
