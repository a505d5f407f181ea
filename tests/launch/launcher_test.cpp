// What ranks get and what the launcher gives back when nothing goes wrong, or nothing can be started.
#include "launch_process.h"

#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LauncherTest : public LaunchTest {
 protected:
  std::string value(int rank, const std::string& name) const {
    const std::string text = concat("\n", log(rank));
    const size_t at = text.find(concat("\n", name, "="));
    return at == std::string::npos ? "missing"
                                   : text.substr(at + name.size() + 2, text.find('\n', at + 1) - at - name.size() - 2);
  }
};

TEST_F(LauncherTest, TellsRanksWhereTheyStand) {
  LaunchProcess launch(
      probes(3, {"*:env=RANK", "*:env=LOCAL_RANK", "*:env=WORLD_SIZE", "*:env=LOCAL_WORLD_SIZE", "*:env=GROUP_RANK",
                 "*:env=MASTER_ADDR", "*:env=MASTER_PORT", "*:env=TRIREME_STORE_ADDR", "*:env=TRIREME_STORE_PORT",
                 "*:env=TRIREME_RUN_ID", "*:env=TORCHELASTIC_RUN_ID", "*:env=TORCHELASTIC_RESTART_COUNT",
                 "*:env=TORCHELASTIC_MAX_RESTARTS", "*:env=TRIREME_TTY", "*:env=TRIREME_RESTART",
                 "*:env=TRIREME_LISTEN_FD"}),
      folder());
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  for (int rank = 0; rank < 3; ++rank) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(value(rank, "RANK"), number);
    EXPECT_EQ(value(rank, "LOCAL_RANK"), number);
    EXPECT_EQ(value(rank, "WORLD_SIZE"), "3");
    EXPECT_EQ(value(rank, "LOCAL_WORLD_SIZE"), "3");
    EXPECT_EQ(value(rank, "GROUP_RANK"), "0");
    EXPECT_EQ(value(rank, "MASTER_ADDR"), "127.0.0.1");
    EXPECT_EQ(value(rank, "MASTER_PORT"), value(0, "MASTER_PORT"));
    EXPECT_GT(std::stoi(value(rank, "MASTER_PORT")), 0);
    EXPECT_EQ(value(rank, "TRIREME_STORE_ADDR"), "127.0.0.1");
    EXPECT_EQ(value(rank, "TRIREME_STORE_PORT"), value(0, "TRIREME_STORE_PORT"));
    EXPECT_NE(value(rank, "TRIREME_STORE_PORT"), value(rank, "MASTER_PORT"));
    EXPECT_EQ(value(rank, "TRIREME_RUN_ID").size(), 16u);
    EXPECT_EQ(value(rank, "TRIREME_RUN_ID"), value(0, "TORCHELASTIC_RUN_ID"));
    EXPECT_EQ(value(rank, "TORCHELASTIC_RESTART_COUNT"), "0");
    EXPECT_EQ(value(rank, "TORCHELASTIC_MAX_RESTARTS"), "0");
    EXPECT_EQ(value(rank, "TRIREME_TTY"), "0");
    EXPECT_EQ(value(rank, "TRIREME_RESTART"), "missing");
    EXPECT_EQ(value(rank, "TRIREME_LISTEN_FD") == "missing", rank != 0);
  }
  EXPECT_EQ(launch.out(), log(0));
  EXPECT_THAT(launch.err(), IsEmpty());
}

// Even what the launcher got from its own parent without FD_CLOEXEC stays behind.
TEST_F(LauncherTest, RanksInheritOnlyTheirOwnDescriptors) {
  LaunchProcess launch(
      probes(2, {"*:fds", "*:env=TRIREME_LIFELINE_FD", "*:env=TRIREME_LISTEN_FD", "*:env=TRIREME_SECRET_FD"}), folder(),
      [] {
        for (const int fd : {60, 500}) {
          ::dup2(1, fd);
        }
      });
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<int> expected = {0, 1, 2, std::stoi(value(rank, "TRIREME_LIFELINE_FD")),
                                 std::stoi(value(rank, "TRIREME_SECRET_FD"))};
    if (rank == 0) {
      expected.push_back(std::stoi(value(0, "TRIREME_LISTEN_FD")));
    }
    std::sort(expected.begin(), expected.end());
    std::string line = "fds";
    for (const int fd : expected) {
      line += concat(" ", fd);
    }
    EXPECT_THAT(log(rank), HasSubstr(line + "\n"));
  }
}

TEST_F(LauncherTest, TheListeningSocketIsTheMeetingPoint) {
  LaunchOptions options = probes(2, {});
  // Rank 0 asks the kernel about the descriptor, rank 1 knocks at the port.
  options.command = {test::python(), "-c", R"(
import os, socket
port = int(os.environ["TRIREME_STORE_PORT"])
if os.environ["RANK"] == "0":
    listener = socket.socket(fileno=int(os.environ["TRIREME_LISTEN_FD"]))
    assert listener.getsockname() == ("127.0.0.1", port), listener.getsockname()
    peer, _ = listener.accept()
    print(peer.recv(100).decode(), flush=True)
else:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.sendall(b"rank 1 was here")
)"};
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(launch.out(), "rank 1 was here\n");
}

// As torch.distributed and many others do; without SO_REUSEADDR, with which more is allowed. A restart finds another
// port.
TEST_F(LauncherTest, TheProgramsRankZeroCanListenOnMasterPort) {
  LaunchOptions options = probes(2, {});
  options.max_restarts = 1;
  options.command = {test::python(), "-c", R"(
import os, socket, sys, time
address = ("" if os.environ["RANK"] == "0" else os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.socket() as listener:
        listener.bind(address)
        listener.listen()
        peer, _ = listener.accept()
        print(address[1], peer.recv(100).decode(), flush=True)
        time.sleep(60 if "TRIREME_RESTART" not in os.environ else 0)
else:
    for attempt in range(1000):
        try:
            with socket.create_connection(address, timeout=20) as s:
                s.sendall(b"rank 1 was here")
            sys.exit(3 if "TRIREME_RESTART" not in os.environ else 0)
        except ConnectionRefusedError:
            time.sleep(0.02)
)"};
  LaunchProcess launch(options, folder());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  const auto words = split(launch.out(), '\n');
  ASSERT_EQ(words.size(), 3u) << launch.out();
  EXPECT_THAT(words[0], testing::EndsWith(" rank 1 was here"));
  EXPECT_THAT(words[1], testing::EndsWith(" rank 1 was here"));
  EXPECT_NE(words[0], words[1]) << "another port";
}

TEST_F(LauncherTest, AllRanksHoldTheSecretAndNobodySeesIt) {
  LaunchOptions options = probes(3, {});
  options.command = {test::python(), "-c", R"(
import os
fd = int(os.environ["TRIREME_SECRET_FD"])
print(os.read(fd, 100).decode())
try:
    os.write(fd, b"x")
except OSError:
    print("sealed")
)"};
  LaunchProcess launch(options, folder());
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  const std::string secret = log(0).substr(0, 64);
  EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos) << secret;
  EXPECT_EQ(log(0), secret + "\nsealed\n") << "each rank has a reading position of its own";
  EXPECT_EQ(log(1), log(0));
  EXPECT_EQ(log(2), log(0));
  EXPECT_EQ(fs::status(folder() / "logs").permissions(), fs::perms::owner_all);
  LaunchProcess other(options, folder() / "logs");
  ASSERT_EQ(other.wait(), 0);
  EXPECT_EQ(log(1).find(secret, secret.size()), std::string::npos) << "another job, another secret";
}

TEST_F(LauncherTest, CountsOnlyCoresItMayUse) {
  LaunchProcess launch(probes(2, {"*:env=OMP_NUM_THREADS"}), folder(), [] {
    ::unsetenv("OMP_NUM_THREADS");
    cpu_set_t all;
    ::sched_getaffinity(0, sizeof(all), &all);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &all)) {
        CPU_SET(core, &one);
        break;
      }
    }
    ::sched_setaffinity(0, sizeof(one), &one);
  });
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(value(1, "OMP_NUM_THREADS"), "1");
}

TEST_F(LauncherTest, RankZeroReadsTheLaunchersInput) {
  std::ofstream(folder() / "input") << "hello";
  LaunchProcess launch(probes(2, {"*:read"}), folder(),
                       [this] { ::dup2(::open((folder() / "input").c_str(), O_RDONLY), 0); });
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(log(0), "read: hello\n");
  EXPECT_EQ(log(1), "read: \n");
}

TEST_F(LauncherTest, WorksWithClosedStandardDescriptors) {
  LaunchProcess launch(probes(2, {"*:fds", "*:out=done"}), folder(), [] {
    ::close(0);
    ::close(1);
  });
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_THAT(log(1), HasSubstr("fds 0 1 2 "));
}

TEST_F(LauncherTest, ARankMayEndEarly) {
  LaunchProcess launch(probes(3, {"1:exit=0", "0:sleep=300", "2:sleep=100", "*:out=end"}), folder());
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(log(0), "end");
  EXPECT_EQ(log(2), "end");
}

TEST_F(LauncherTest, RefusesWhatCannotBeStarted) {
  const auto complaint = [](const LaunchOptions& options) {
    try {
      return concat("returned ", run(options));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  LaunchOptions options = probes(0, {});
  EXPECT_THAT(complaint(options), HasSubstr("0 ranks cannot be started"));
  options = probes(2, {});
  options.command = {"no-such-program"};
  EXPECT_THAT(complaint(options), HasSubstr("program not found: no-such-program"));
  options.command.clear();
  EXPECT_THAT(complaint(options), HasSubstr("no program to start"));
  options = probes(2, {});
  options.max_restarts = -1;
  EXPECT_THAT(complaint(options), HasSubstr("max_restarts is -1"));
  options = probes(2, {});
  options.grace_seconds = std::nan("");
  EXPECT_THAT(complaint(options), HasSubstr("grace_seconds is nan"));
  options = probes(2, {});
  options.extra_env = {{"A=B", "c"}};
  EXPECT_THAT(complaint(options), HasSubstr("\"A=B\" is not a valid name"));
  touch("file");
  options = probes(2, {});
  options.log_dir = folder() / "file";
  EXPECT_THAT(complaint(options), HasSubstr("cannot make the log folder"));
  fs::create_directories(folder() / "logs" / "rank1.log");
  EXPECT_THAT(complaint(probes(2, {"*:pid"})), HasSubstr("cannot write"));
  EXPECT_THAT(all_pids(), IsEmpty()) << "a rank was started";
}

TEST_F(LauncherTest, LeavesTheCallerAsItWas) {
  sigset_t before;
  ::sigprocmask(SIG_SETMASK, nullptr, &before);
  EXPECT_EQ(run(probes(2, {"*:exit=0"})), 0);
  sigset_t after;
  ::sigprocmask(SIG_SETMASK, nullptr, &after);
  for (int number = 1; number < 32; ++number) {
    EXPECT_EQ(sigismember(&before, number), sigismember(&after, number)) << number;
  }
  struct sigaction broken_pipe{};
  ::sigaction(SIGPIPE, nullptr, &broken_pipe);
  EXPECT_EQ(broken_pipe.sa_handler, SIG_DFL);
  int open = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    ++open;
  }
  EXPECT_EQ(run(probes(2, {"*:exit=0"})), 0);
  int still_open = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    ++still_open;
  }
  EXPECT_EQ(open, still_open);
}

TEST_F(LauncherTest, MakesAPrivateLogFolder) {
  LaunchOptions options = probes(2, {"*:out=words"});
  options.log_dir.clear();
  LaunchProcess launch(options, folder(), [this] { ::setenv("TMPDIR", folder().c_str(), 1); });
  ASSERT_EQ(launch.wait(), 0) << launch.err();
  std::vector<fs::path> made;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.is_directory()) {
      made.push_back(entry.path());
    }
  }
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(fs::status(made[0]).permissions(), fs::perms::owner_all);
  EXPECT_EQ(read_file(made[0] / "rank1.log"), "words");
  EXPECT_EQ(launch.err(), concat("[launch] output of the other ranks: ", made[0].string(), "/rank*.log\n"));
}

TEST_F(LauncherTest, KeepsNoLogsThatNobodyNeeds) {
  fs::create_directories(folder() / "tmp");
  LaunchOptions options = probes(2, {"*:out=words\n"});
  options.log_dir.clear();
  options.all_output = true;
  const auto use_tmp = [this] { ::setenv("TMPDIR", (folder() / "tmp").c_str(), 1); };
  EXPECT_EQ(LaunchProcess(options, folder(), use_tmp).wait(), 0);
  EXPECT_TRUE(fs::is_empty(folder() / "tmp"));
  options.command.back() = "0:out=words\n"; // the others write nothing
  options.all_output = false;
  EXPECT_EQ(LaunchProcess(options, folder(), use_tmp).wait(), 0);
  EXPECT_TRUE(fs::is_empty(folder() / "tmp"));
  options.all_output = true;
  options.command.back() = "1:exit=3";
  EXPECT_EQ(LaunchProcess(options, folder(), use_tmp).wait(), 3);
  EXPECT_FALSE(fs::is_empty(folder() / "tmp")) << "the report names the log";
}

TEST_F(LauncherTest, JobsSideBySideDoNotMeet) {
  for (int round = 0; round < 20; ++round) {
    std::vector<fs::path> folders;
    std::vector<std::unique_ptr<LaunchProcess>> jobs;
    for (const char* name : {"a", "b"}) {
      folders.push_back(folder() / concat(name, round));
      fs::create_directories(folders.back());
      LaunchOptions options = probes(2, {"*:env=TRIREME_STORE_PORT", "*:env=MASTER_PORT", concat("*:out=", name),
                                         "0:await=go" + std::to_string(round)});
      options.log_dir = folders.back();
      jobs.push_back(std::make_unique<LaunchProcess>(options, folders.back()));
    }
    const auto ports_of = [](const fs::path& log) {
      const auto lines = split(fs::exists(log) ? read_file(log) : "", '\n');
      return lines.size() < 3 ? std::vector<std::string>() : std::vector(lines.begin(), lines.begin() + 2);
    };
    // Both jobs are alive here, so both sockets and both ports for programs are held.
    ASSERT_TRUE(eventually(
        [&] { return !ports_of(folders[0] / "rank0.log").empty() && !ports_of(folders[1] / "rank0.log").empty(); }));
    EXPECT_NE(ports_of(folders[0] / "rank0.log")[0], ports_of(folders[1] / "rank0.log")[0]);
    EXPECT_NE(ports_of(folders[0] / "rank0.log")[1], ports_of(folders[1] / "rank0.log")[1]);
    touch("go" + std::to_string(round));
    EXPECT_EQ(jobs[0]->wait(), 0) << jobs[0]->err();
    EXPECT_EQ(jobs[1]->wait(), 0) << jobs[1]->err();
    EXPECT_EQ(ports_of(folders[0] / "rank0.log"), ports_of(folders[0] / "rank1.log"));
  }
}

} // namespace
} // namespace trireme::launch
