#include <tests/support/folders.h>
#include <trireme/base/env.h>
#include <trireme/base/file.h>
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
using testing::AllOf;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::UnorderedElementsAre;

const std::string kDemo = "\"" + test::binary_dir() + "/tests/comm/comm_demo\"";

std::vector<std::string> lines_of(const std::string& output) {
  auto lines = split(output, '\n');
  std::erase(lines, "");
  return lines;
}

void expect_three_ranks(const std::string& command) {
  const auto [status, output] = run_command(command);
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(lines_of(output), UnorderedElementsAre("rank 0 of 3 (local 0 of 3): [15, 27, 39]",
                                                     "rank 1 of 3 (local 1 of 3): [15, 27, 39]",
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
  const std::string job = "\"" + test::binary_dir() + "/bin/trireme\" launch -n 2 --all-output -- " + kDemo;
  const int turns = env::flag("TRIREME_LONG_TESTS") ? 50 : 5;
  for (int turn = 0; turn < turns; ++turn) {
    const auto [status, output] = run_command(job + " & " + job + "; first=$?; wait $! && exit $first");
    EXPECT_EQ(status, 0) << output;
    const std::string zero = "[rank 0] rank 0 of 2 (local 0 of 2): [11, 22, 33]";
    const std::string one = "[rank 1] rank 1 of 2 (local 1 of 2): [11, 22, 33]";
    ASSERT_THAT(lines_of(output), UnorderedElementsAre(zero, zero, one, one)) << "turn " << turn;
  }
}

// Both end at about the same time, rank 0 with an error that says only that rank 1 has ended.
TEST(LaunchersTest, TheRankThatFailedIsShown) {
  for (int turn = 0; turn < 5; ++turn) {
    const auto [status, output] =
        run_command("\"" + test::binary_dir() + "/bin/trireme\" launch -n 3 -- " + kDemo + " --throw-on 1 2>&1");
    EXPECT_EQ(status, 1);
    ASSERT_THAT(output, AllOf(HasSubstr("[launch] rank 1 ended with exit code 1 (pid "),
                              HasSubstr(" after start: [demo] fails on purpose.\n")))
        << "turn " << turn;
  }
}

// torch.distributed opens a store of its own at MASTER_PORT, beside ours.
TEST(LaunchersTest, AProgramOfPythonBesideOneOfOurs) {
  const std::string python = test::python();
  if (run_command("\"" + python + "\" -c 'import torch.distributed'").first != 0) {
    GTEST_SKIP() << "there is no torch in .venv (libtorch comes from elsewhere)";
  }
  const std::string script = testing::TempDir() + "/trireme_ddp.py";
  write_file_atomically(script, R"(
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(3, 1)
start = model.weight.detach().clone()
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    parallel(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
assert not torch.equal(start, model.weight)
print(torch.cat([p.detach().flatten() for p in model.parameters()]).tolist())
dist.destroy_process_group()
)");
  const auto [status, output] =
      run_command("\"" + test::binary_dir() + "/bin/trireme\" launch -n 2 --all-output -- sh -c '" + kDemo + " & \"" +
                  python + "\" " + script + " && wait $!' 2>&1");
  EXPECT_EQ(status, 0) << output;
  const auto lines = lines_of(output);
  const auto parameters = [&](const std::string& rank) {
    const auto line =
        std::find_if(lines.begin(), lines.end(), [&](const std::string& one) { return one.starts_with(rank + "["); });
    return line == lines.end() ? "none of " + rank : line->substr(rank.size());
  };
  EXPECT_EQ(parameters("[rank 0] "), parameters("[rank 1] ")) << output;
  EXPECT_THAT(lines, IsSupersetOf({"[rank 0] rank 0 of 2 (local 0 of 2): [11, 22, 33]",
                                   "[rank 1] rank 1 of 2 (local 1 of 2): [11, 22, 33]"}))
      << output;
}

TEST(LaunchersTest, Torchrun) {
  const std::string torchrun = test::source_dir() + "/.venv/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) {
    GTEST_SKIP() << torchrun << " is not there (libtorch comes from elsewhere); torchrun is not tested";
  }
  expect_three_ranks("OMP_NUM_THREADS=1 \"" + torchrun +
                     "\" --no-python --nproc-per-node 3 --master-addr 127.0.0.1 --master-port " +
                     std::to_string(free_port()) + " " + kDemo);
}

TEST(LaunchersTest, Mpirun) {
  if (run_command("command -v mpirun").first != 0) {
    GTEST_SKIP() << "mpirun is not installed; apt-get install openmpi-bin to test it";
  }
  const bool open_mpi = run_command("mpirun --version").second.find("Open MPI") != std::string::npos;
  expect_three_ranks(open_mpi ? "mpirun --allow-run-as-root --oversubscribe -n 3 " + kDemo : "mpirun -n 3 " + kDemo);
}

TEST(LaunchersTest, AShellOfSlurmIsNoTask) {
  const std::string step =
      "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_ID=0 SLURM_JOB_ID=4711 SLURM_JOB_NAME=train "
      "SLURM_STEP_NODELIST=$(hostname) ";
  // With set -m bash treats its commands as at a terminal.
  const auto [status, output] = run_command(step + "SLURM_PTY_PORT=44263 bash -c 'set -m; export SLURM_TASK_PID=$$; " +
                                            kDemo + "; exit $?' 2>&1");
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, AllOf(HasSubstr("rank 0 of 1 "), HasSubstr("SLURM_NTASKS")));
}

TEST(LaunchersTest, RankZeroSoonSaysForWhomItWaits) {
  const auto [status, output] =
      run_command("SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_STEP_ID=0 SLURM_JOB_ID=" + std::to_string(free_port() % 10000) +
                  " SLURM_STEP_NODELIST=$(hostname) TRIREME_TIMEOUT=7 " + kDemo + " 2>&1");
  EXPECT_EQ(status, 1) << output;
  EXPECT_THAT(
      output,
      AllOf(HasSubstr("rank 0 of 3 (Slurm: SLURM_PROCID and SLURM_NTASKS) waits for ranks 1 and 2 at 127.0.0.1:"),
            HasSubstr("unset SLURM_STEP_ID")));
}

TEST(LaunchersTest, WrongVariablesExitWithTwo) {
  const auto [status, output] = run_command("RANK=2 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 " + kDemo);
  EXPECT_EQ(status, 2);
  EXPECT_EQ(output,
            "[comm] rank 2 is outside a world of 2 (RANK and WORLD_SIZE). Ranks run from 0 to 1: correct the rank or "
            "the world size.\n");
}

} // namespace
} // namespace trireme::comm
