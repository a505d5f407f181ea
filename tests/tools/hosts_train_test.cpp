// trireme train on several hosts, or from two launchers, of which one was taken for lost: one training writes the run
// folder.
#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

bool eventually(const std::function<bool()>& condition, int seconds = 60) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// "" of a file that is not there, and of a process that is just ending.
std::string text_of(const fs::path& path) {
  try {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  } catch (const std::ios_base::failure&) {
    return "";
  }
}

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  bool lives = false; // is no zombie
};

Process process(pid_t pid) {
  const std::string stat = text_of(concat("/proc/", pid, "/stat"));
  const size_t end = stat.rfind(')');
  if (end == std::string::npos || stat.size() < end + 5) {
    return {};
  }
  return {pid, static_cast<pid_t>(std::stol(stat.substr(end + 4))), stat[end + 2] != 'Z' && stat[end + 2] != 'X'};
}

class HostsTrainTest : public RunFolder {
 protected:
  HostsTrainTest() {
    write_file_atomically(folder / "hosts",
                          "a slots=1 address=127.0.0.2\nb slots=1 address=127.0.0.3\nc slots=1 address=127.0.0.4\n");
    // As ssh: an agent survives its end.
    write_file_atomically(folder / "rsh", "#!/bin/sh\nshift\nexec 3<&0\nsetsid \"$@\" <&3 &\nwait\n", 0700);
  }
  ~HostsTrainTest() override {
    EXPECT_TRUE(eventually([this] { return ranks().empty(); }, 30)) << "ranks are left";
    for (const pid_t pid : ranks()) {
      ::kill(pid, SIGKILL);
    }
  }
  std::string on_hosts(const std::string& out, int nodes, const std::string& more) const {
    return concat(kTrireme, " train ", path("run.json"), " --hostfile ", path("hosts"), " --rsh ", path("rsh"),
                  " --min-nodes ", nodes, " --max-nodes ", nodes, " --heartbeat-timeout 2 --out ", path(out), ' ',
                  more);
  }
  std::future<Finished> begin(const std::string& command, int seconds = 200) const {
    return std::async(std::launch::async,
                      [command, seconds] { return sh(concat("OMP_NUM_THREADS=1 exec ", command), seconds); });
  }
  /// Running processes of `trireme-rank train` of this test.
  std::vector<pid_t> ranks() const { return processes("trireme-rank"); }
  std::vector<pid_t> processes(const std::string& name) const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string number = entry.path().filename().string();
      if (number.find_first_not_of("0123456789") == std::string::npos &&
          text_of(entry.path() / "comm") == name + "\n" &&
          text_of(entry.path() / "cmdline").find(folder.string() + "/") != std::string::npos &&
          process(static_cast<pid_t>(std::stol(number))).lives) {
        found.push_back(static_cast<pid_t>(std::stol(number)));
      }
    }
    return found;
  }
  void stop_job() const {
    for (const pid_t launcher : processes("trireme")) {
      ::kill(launcher, SIGTERM);
    }
  }
  int64_t lines(const std::string& out) const {
    const std::string text = text_of(folder / out / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  /// Steps come once, in order.
  void expect_one_training(const std::string& out) const {
    std::istringstream rows(text_of(folder / out / "metrics.jsonl"));
    int64_t last = 0;
    for (std::string row; std::getline(rows, row);) {
      const int64_t step = nlohmann::json::parse(row).at("step");
      ASSERT_EQ(step, last + 1) << "of " << out;
      last = step;
    }
    const Finished intact = sh(concat(kTrireme, " inspect ", path(out)));
    EXPECT_EQ(intact.status, 0) << intact.output;
  }
};

TEST_F(HostsTrainTest, TheRanksOfASilentHostHaveEndedBeforeOthersTrain) {
  auto job =
      begin(on_hosts("out", 1, "--max-restarts 1 --set training.steps=1000000 --set training.checkpoint_every=50"));
  ASSERT_TRUE(eventually([&] { return lines("out") > 60; }));
  const pid_t old_rank = ranks().at(0);
  const pid_t agent = process(process(old_rank).parent).parent;
  ::kill(agent, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return fs::exists(folder / "out/logs/attempt.3"); }))
      << "1: the launcher, 2: the first rank";
  EXPECT_FALSE(process(old_rank).lives);
  const int64_t before = lines("out");
  EXPECT_TRUE(eventually([&] { return lines("out") > before + 60; }));
  ::kill(agent, SIGCONT);
  stop_job();
  const Finished finished = job.get();
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("is lost: it has sent nothing for 2.00 s"),
                                     HasSubstr("may still run, until its lease ends")));
  expect_one_training("out");
}

// A guardian that is stopped too, as all of a paused virtual machine's processes, ends nothing: the ranks find out by
// themselves.
TEST_F(HostsTrainTest, ARankThatNobodyEndsWritesNothingMore) {
  auto job =
      begin(on_hosts("out", 1, "--max-restarts 1 --set training.steps=1000000 --set training.checkpoint_every=50"));
  ASSERT_TRUE(eventually([&] { return lines("out") > 60; }));
  const pid_t old_rank = ranks().at(0);
  const pid_t guardian = process(old_rank).parent;
  const pid_t agent = process(guardian).parent;
  ::kill(agent, SIGSTOP);
  ::kill(guardian, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return fs::exists(folder / "out/logs/attempt.3"); }));
  EXPECT_TRUE(eventually([&] { return !process(old_rank).lives; })) << "it was replaced";
  const int64_t before = lines("out");
  EXPECT_TRUE(eventually([&] { return lines("out") > before + 60; }));
  ::kill(guardian, SIGCONT);
  ::kill(agent, SIGCONT);
  stop_job();
  const Finished finished = job.get();
  EXPECT_EQ(finished.status, 0) << finished.output;
  expect_one_training("out");
}

// On another machine the lock of the run folder does not count.
TEST_F(HostsTrainTest, ATrainingThatAnotherLauncherReplacesEndsAndSaysSo) {
  const std::string train = concat(
      kTrireme, " train ", path("run.json"),
      " -n 2 --set training.steps=1000000 --set training.checkpoint_every=50 --max-restarts 3 --out ", path("out"));
  auto first = begin(train);
  ASSERT_TRUE(eventually([&] { return lines("out") > 60; }));
  fs::remove(folder / "out/logs/lock");
  auto second = begin(train + " --resume");
  const Finished replaced = first.get();
  EXPECT_EQ(replaced.status, 1) << replaced.output;
  EXPECT_THAT(replaced.output, AllOf(HasSubstr("was replaced by attempt "), HasSubstr("writes nothing more"),
                                     HasSubstr("not starting again: another training writes into ")));
  const int64_t before = lines("out");
  EXPECT_TRUE(eventually([&] { return lines("out") > before + 60; }));
  stop_job();
  const Finished finished = second.get();
  EXPECT_EQ(finished.status, 0) << finished.output;
  expect_one_training("out");
  EXPECT_THAT(text_of(folder / "out/launch.json"), HasSubstr("\"preempted\""));
}

// Hosts are killed, stopped and lose their guardian again and again: nothing is lost, and there is one training.
TEST_F(HostsTrainTest, HostsAreLostAgainAndAgainAndTheRunEndsBitIdentical) {
  const int kills = std::getenv("TRIREME_LONG_TESTS") != nullptr ? 20 : 2;
  const int steps = 300 + 200 * kills;
  const std::string more = concat("--set training.checkpoint_every=20 --set training.steps=", steps);
  const Finished clean =
      sh(concat("OMP_NUM_THREADS=1 ", kTrireme, " train ", path("run.json"), " -n 2 --out ", path("clean"), ' ', more),
         300);
  ASSERT_EQ(clean.status, 0) << clean.output;
  auto job = begin(on_hosts("out", 2, concat("--max-restarts ", 2 * kills, ' ', more)), 1500);
  std::mt19937 random(static_cast<unsigned>(::getpid()));
  std::vector<pid_t> stopped;
  for (int kill = 0; kill < kills; ++kill) {
    const int64_t from = std::max<int64_t>(lines("out"), 30);
    const auto at = static_cast<int64_t>(from + random() % 150);
    std::vector<pid_t> there;
    ASSERT_TRUE(eventually([&] { return lines("out") >= at && (there = ranks()).size() >= 2; }, 120))
        << "kill " << kill << " at " << at << ", " << lines("out");
    const pid_t rank = there.at(random() % there.size());
    const pid_t guardian = process(rank).parent;
    const pid_t agent = process(guardian).parent;
    if (guardian <= 1 || agent <= 1) {
      --kill; // it has just ended
      continue;
    }
    switch (random() % 5) {
      case 0:
        ::kill(rank, SIGKILL);
        break;
      case 1:
        ::kill(guardian, SIGKILL);
        break;
      case 2:
        ::kill(agent, SIGKILL);
        break;
      case 3:
        ::kill(agent, SIGSTOP);
        stopped.push_back(agent);
        break;
      default:
        ::kill(agent, SIGSTOP);
        ::kill(guardian, SIGSTOP);
        stopped.push_back(guardian);
        stopped.push_back(agent);
    }
    ASSERT_TRUE(eventually([&] { return !process(rank).lives; }, 120)) << "kill " << kill;
  }
  const Finished finished = job.get();
  for (const pid_t pid : stopped) {
    ::kill(pid, SIGCONT);
  }
  EXPECT_EQ(finished.status, 0) << finished.output;
  expect_one_training("out");
  EXPECT_EQ(lines("out"), steps);
  const std::string last = concat("checkpoints/global_step", steps);
  EXPECT_TRUE(tensor_bytes(folder / "out" / last) == tensor_bytes(folder / "clean" / last));
}

} // namespace
} // namespace trireme::tools
