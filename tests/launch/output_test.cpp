// Where the output of ranks goes.
#include "launch_process.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/launch/descriptor.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

class OutputTest : public LaunchTest {};

TEST_F(OutputTest, RankZeroIsShownByteForByte) {
  const std::string odd = std::string("10 %\r50 %\r\x1b[2K\xff\xfe no line end");
  LaunchProcess launch(probes(2, {"0:out=first\n", "0:out=" + odd, "0:err=" + odd, "1:out=other", "1:err=words"}),
                       folder());
  ASSERT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "first\n" + odd);
  EXPECT_EQ(launch.err(), odd);
  EXPECT_THAT(log(0), HasSubstr(odd));
  EXPECT_EQ(log(1), "otherwords");
}

TEST_F(OutputTest, PartialLinesAppearAtOnce) {
  LaunchProcess launch(probes(2, {"0:out=half", "0:await=go", "0:out= whole\n"}), folder());
  EXPECT_TRUE(eventually([&] { return launch.out() == "half"; })) << launch.out();
  touch("go");
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "half whole\n");
}

TEST_F(OutputTest, AllRanksWithTheirNames) {
  LaunchOptions options = probes(2, {"0:out=a\nb", "1:out=[rank 1] c\n", "1:err=d\ne\n", "1:out=[rank 12] f\n"});
  options.all_output = true;
  LaunchProcess launch(options, folder());
  ASSERT_EQ(launch.wait(), 0);
  const std::string out = launch.out();
  EXPECT_THAT(out, HasSubstr("[rank 0] a\n"));
  EXPECT_THAT(out, HasSubstr("[rank 0] b\n"));
  EXPECT_THAT("\n" + out, HasSubstr("\n[rank 1] c\n")) << "the name stands there already";
  EXPECT_THAT(out, HasSubstr("[rank 1] [rank 12] f\n"));
  EXPECT_EQ(launch.err(), "[rank 1] d\n[rank 1] e\n");
  EXPECT_EQ(log(0), "a\nb") << "logs are as the rank wrote them";
}

TEST_F(OutputTest, MuchOutputArrivesWhole) {
  LaunchProcess launch(probes(2, {"*:lines=60000"}), folder());
  ASSERT_EQ(launch.wait(), 0);
  std::string expected;
  for (int line = 1; line <= 60000; ++line) {
    expected += concat("line ", line, "\n");
  }
  EXPECT_TRUE(launch.err() == expected);
  EXPECT_TRUE(log(0) == expected);
  EXPECT_TRUE(log(1) == expected);
}

TEST_F(OutputTest, LogsAreAppendedTo) {
  ASSERT_EQ(LaunchProcess(probes(2, {"*:out=old\n"}), folder()).wait(), 0);
  ASSERT_EQ(LaunchProcess(probes(2, {"*:out=new\n"}), folder()).wait(), 0);
  EXPECT_THAT(log(1), testing::MatchesRegex("old\n---- started [-0-9]+ [:0-9]+ ----\nnew\n"));
}

// `trireme launch ... | head -1`: the job is not lost with its reader.
TEST_F(OutputTest, AReaderThatLeavesDoesNotStopTheJob) {
  LaunchProcess launch(probes(2, {"0:lines=20000", "0:err=end\n"}), folder(), [] {
    Pipe pipe = make_pipe();
    ::dup2(pipe.write.get(), 1);
    ::dup2(pipe.write.get(), 2);
  });
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_TRUE(log(0).ends_with("line 20000\nend\n"));
}

// A pager that shows the first page: rank 0 has to wait for it, but the end of rank 1 is noticed.
TEST_F(OutputTest, AReaderThatWaitsDoesNotHideAFailure) {
  const Pipe pipe = make_pipe();
  LaunchProcess launch(probes(2, {"*:pid", "0:lines=200000", "1:await=go", "1:exit=3"}), folder(),
                       [&] { ::dup2(pipe.write.get(), 2); });
  ASSERT_TRUE(appears("pid.rank.0.0"));
  ASSERT_TRUE(eventually(
      [&] { return fs::exists(folder() / "logs/rank0.log") && fs::file_size(folder() / "logs/rank0.log") > 200'000; }));
  touch("go");
  EXPECT_TRUE(eventually([&] { return !is_running(pid_of("pid.rank.0.0")); })) << "rank 0 is not stopped";
  // Reading lets the launcher end.
  set_nonblocking(pipe.read.get());
  std::string text;
  char buffer[65536];
  EXPECT_TRUE(eventually([&] {
    const bool ended = !is_running(launch.pid());
    ssize_t got = 0;
    while ((got = ::read(pipe.read.get(), buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return ended;
  }));
  EXPECT_EQ(launch.wait(), 3);
  EXPECT_THAT(text, AllOf(HasSubstr("[launch] rank 1 ended with exit code 3"), HasSubstr("rank1.log\n")));
}

TEST_F(OutputTest, AFullDiskCostsOnlyTheLog) {
  fs::create_directories(folder() / "logs");
  fs::create_symlink("/dev/full", folder() / "logs" / "rank1.log");
  LaunchProcess launch(probes(2, {"1:out=words\n", "1:out=more\n", "*:sleep=50"}), folder());
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.err(), concat("[launch] cannot write ", (folder() / "logs/rank1.log").string(),
                                 ": No space left on device. The ranks continue without this log.\n"));
}

TEST_F(OutputTest, TellsRankZeroTheWidthOfTheTerminal) {
  int master = -1;
  int slave = -1;
  winsize size{};
  size.ws_col = 97;
  size.ws_row = 20;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
  const Descriptor near(master);
  const Descriptor far(slave);
  LaunchProcess launch(probes(2, {"*:env=TRIREME_TTY"}), folder(), [&] { ::dup2(slave, 2); });
  ASSERT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "TRIREME_TTY=97\n");
  EXPECT_EQ(log(1), "TRIREME_TTY=0\n") << "its output is not on the terminal";
}

TEST_F(OutputTest, OwnWordsStartOnALineOfTheirOwn) {
  LaunchProcess launch(probes(2, {"0:err=step 7", "0:sleep=60000", "1:sleep=200", "1:exit=3"}), folder());
  EXPECT_EQ(launch.wait(), 3);
  EXPECT_THAT(launch.err(), testing::StartsWith("step 7\n[launch] rank 1 ended with exit code 3 (pid "));
  EXPECT_THAT(launch.out(), IsEmpty());
}

} // namespace
} // namespace trireme::launch
