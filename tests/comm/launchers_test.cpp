#include <trireme/base/env.h>
#include <trireme/base/text.h>

#include "tests/support/command.h"
#include "tests/support/free_port.h"

#include <gmock/gmock.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace trireme::comm {
namespace {

using test::free_port;
using test::run_command;
using testing::UnorderedElementsAre;

const std::string kDemo = "\"" TRIREME_BINARY_DIR "/tests/comm/comm_demo\"";

std::vector<std::string> lines_of(const std::string& output) {
  auto lines = split(output, '\n');
  std::erase(lines, "");
  return lines;
}

void expect_three_ranks(const std::string& command) {
  const auto [status, output] = run_command(command);
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(lines_of(output), UnorderedElementsAre("rank 0 of 3 (local 0 of 3): [15, 27, 39]", "rank 1 of 3 (local 1 of 3): [15, 27, 39]",
                                                     "rank 2 of 3 (local 2 of 3): [15, 27, 39]"))
      << output;
}

TEST(LaunchersTest, OneProcessNeedsNobody) {
  const auto [status, output] = run_command("env -u RANK -u WORLD_SIZE " + kDemo);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(output, "rank 0 of 1 (local 0 of 1): [1, 2, 3]\n");
}

TEST(LaunchersTest, PlainVariables) {
  expect_three_ranks(test::plain_start(kDemo, 3, free_port()));
}

TEST(LaunchersTest, JobsStartedAtOnceDoNotMeetEachOther) {
  const std::string job = "\"" TRIREME_BINARY_DIR "/bin/trireme\" launch -n 2 --all-output -- " + kDemo;
  const int turns = env::flag("TRIREME_LONG_TESTS") ? 50 : 5;
  for (int turn = 0; turn < turns; ++turn) {
    const auto [status, output] = run_command(job + " & " + job + "; first=$?; wait $! && exit $first");
    EXPECT_EQ(status, 0) << output;
    const std::string zero = "[rank 0] rank 0 of 2 (local 0 of 2): [11, 22, 33]";
    const std::string one = "[rank 1] rank 1 of 2 (local 1 of 2): [11, 22, 33]";
    ASSERT_THAT(lines_of(output), UnorderedElementsAre(zero, zero, one, one)) << "turn " << turn;
  }
}

TEST(LaunchersTest, Torchrun) {
  const std::string torchrun = TRIREME_SOURCE_DIR "/.venv/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) {
    GTEST_SKIP() << torchrun << " is not there (libtorch comes from elsewhere); torchrun is not tested";
  }
  expect_three_ranks("OMP_NUM_THREADS=1 \"" + torchrun + "\" --no-python --nproc-per-node 3 --master-addr 127.0.0.1 --master-port " +
                     std::to_string(free_port()) + " " + kDemo);
}

TEST(LaunchersTest, Mpirun) {
  if (run_command("command -v mpirun").first != 0) {
    GTEST_SKIP() << "mpirun is not installed; apt-get install openmpi-bin to test it";
  }
  const bool open_mpi = run_command("mpirun --version").second.find("Open MPI") != std::string::npos;
  expect_three_ranks(open_mpi ? "mpirun --allow-run-as-root --oversubscribe -n 3 " + kDemo : "mpirun -n 3 " + kDemo);
}

TEST(LaunchersTest, WrongVariablesExitWithTwo) {
  const auto [status, output] = run_command("RANK=2 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 " + kDemo);
  EXPECT_EQ(status, 2);
  EXPECT_EQ(output, "[comm] rank 2 is outside a world of 2 (RANK and WORLD_SIZE). Ranks run from 0 to 1: correct the rank or the world size.\n");
}

} // namespace
} // namespace trireme::comm
