// examples/slurm under a real Slurm (slurm_cluster.sh): what its jobs train equals `trireme train -n 2`, whatever
// interrupts them.
#include "tests/tools/shell.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kNamespaces = "unshare --pid --fork --kill-child --mount-proc --net --uts --mount";

/// Why Slurm cannot run here, "" when it can.
std::string why_not_slurm() {
  if (::geteuid() != 0) {
    return "a Slurm of the test's own needs root";
  }
  for (const char* program : {"slurmctld", "slurmd", "sbatch", "srun", "ip", "unshare"}) {
    if (sh(concat("command -v ", program)).status != 0) {
      return concat(program, " is not installed (packages slurmctld, slurmd, slurm-client, iproute2)");
    }
  }
  const Finished made =
      sh(concat(kNamespaces, " sh -c \"hostname n1 && ip link add nodes type veth peer name other\""));
  return made.status == 0 ? "" : concat("namespaces cannot be made here: ", made.output);
}

class SlurmTest : public RunFolder {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not_slurm(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    ::setenv("OMP_NUM_THREADS", "1", 1); // sums in the same order everywhere
    ::setenv("TRIREME", (test::binary_dir() + "/bin/trireme").c_str(), 1);
    ::setenv("SLURM_EXAMPLES", (test::source_dir() + "/examples/slurm").c_str(), 1);
  }
  /// Runs a script beside the run folder on a Slurm of its own, which is gone afterwards.
  Finished on_slurm(const std::string& script) const {
    write_file_atomically(folder / "script.sh", script);
    return sh(concat("exec ", kNamespaces, " bash \"" + test::source_dir() + "/tests/schedulers/slurm_cluster.sh\" ",
                     folder.string(), " ", path("script.sh")),
              220);
  }
  std::string log_of(const std::string& job) const { return read_file(folder / concat(job, ".log")); }
  std::string state_of(const std::string& run, int step) const {
    return tensor_bytes(folder / run / concat("checkpoints/global_step", step));
  }
  // What `trireme train -n 2` makes of the same run file without interruption.
  std::string uninterrupted(const std::string& settings, int step) const {
    const Finished run =
        sh(concat(kTrireme, " train ", path("run.json"), " -n 2 --out ", path("clean"), ' ', settings));
    EXPECT_EQ(run.status, 0) << run.output;
    return state_of("clean", step);
  }
  int64_t steps_written(const std::string& run) const {
    const std::string metrics = read_file(folder / run / "metrics.jsonl");
    return std::count(metrics.begin(), metrics.end(), '\n');
  }
};

// The second job's name made the ranks of earlier versions think that they were alone.
TEST_F(SlurmTest, TasksTrainAsTheLaunchersRanksDo) {
  const Finished run = on_slurm(R"sh(
sbatch --wait "$SLURM_EXAMPLES/train.sbatch" run.json && echo first ended well
sbatch --wait --job-name=interactive --nodes=2 "$SLURM_EXAMPLES/train.sbatch" run.json && echo second ended well
sbatch --wait --nodes=2 "$SLURM_EXAMPLES/launcher.sbatch" run.json && echo third ended well
)sh");
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("first ended well"), HasSubstr("second ended well"), HasSubstr("third ended well")))
      << log_of("trireme-1");
  const std::string clean = uninterrupted("", 30);
  for (const char* job : {"trireme-1", "interactive-2", "trireme-3"}) {
    EXPECT_TRUE(state_of(concat("runs/", job), 30) == clean) << job << '\n' << log_of(job);
    EXPECT_THAT(log_of(job), HasSubstr("2 ranks, 2 data-parallel")) << job;
    EXPECT_THAT(log_of(job), Not(HasSubstr("without a secret"))) << job;
  }
}

// Both have a terminal, and the same variables but for SLURM_TASK_PID.
TEST_F(SlurmTest, WhatIsTypedInAShellIsAloneAndAProgramOfTasksIsNot) {
  if (sh("command -v script").status != 0) {
    GTEST_SKIP() << "script is not installed (package bsdutils)";
  }
  const Finished run = on_slurm("demo=\"" + test::binary_dir() +
                                "/tests/comm/comm_demo\""
                                R"sh(
script -qec "srun -n 2 --job-name=x --pty $demo" tasks.txt </dev/null
( printf '%s; touch typed\nexit\n' "$demo"; until test -e typed; do sleep 0.2; done; sleep 1 ) | script -qec "srun -n 2 --job-name=x --pty bash --norc" shell.txt
)sh");
  EXPECT_THAT(read_file(folder / "tasks.txt"), HasSubstr("rank 0 of 2 ")) << run.output;
  EXPECT_THAT(read_file(folder / "shell.txt"), HasSubstr("rank 0 of 1 ")) << run.output;
}

TEST_F(SlurmTest, AKilledRankIsRequeuedAndResumesByItself) {
  const std::string settings = "--set training.steps=400 --set training.checkpoint_every=40";
  const Finished run = on_slurm(concat("settings=\"", settings, "\"\n", R"sh(
job=$(sbatch --parsable "$SLURM_EXAMPLES/train.sbatch" run.json $settings)
wait_for has_steps runs/trireme-$job 60
kill -9 "$(rank_process 1)"
start_again "$job" 1
wait_for is_in "$job" "COMPLETED FAILED"
state_of "$job"
)sh"));
  EXPECT_THAT(run.output, HasSubstr("COMPLETED")) << log_of("trireme-1");
  EXPECT_THAT(log_of("trireme-1"),
              AllOf(HasSubstr("task 1: Killed"), HasSubstr("continuing from runs/trireme-1/checkpoints/global_step")));
  EXPECT_TRUE(state_of("runs/trireme-1", 400) == uninterrupted(settings, 400));
  EXPECT_EQ(steps_written("runs/trireme-1"), 400);
}

// An agent's task has the processors of all ranks of its node. (Of tasks of srun this Slurm shows only the sum, which
// is the job's in any case.)
TEST_F(SlurmTest, AnAgentGetsTheProcessorsOfItsRanks) {
  const Finished run = on_slurm(R"sh(
job=$(sbatch --parsable --nodes=2 --ntasks-per-node=2 --cpus-per-task=2 "$SLURM_EXAMPLES/launcher.sbatch" run.json --set training.steps=100000)
wait_for has_steps runs/trireme-$job 3
scontrol -o show step "$job"
scancel "$job"
wait_for is_in "$job" CANCELLED
)sh");
  EXPECT_THAT(run.output, ContainsRegex("StepId=[0-9]+\\.0 .* CPUs=4 Tasks=1 ")) << log_of("trireme-1");
}

// Two minutes are the shortest limit that leaves a signal some time; the job would run for days.
TEST_F(SlurmTest, TheTimeLimitsSignalSavesAndRequeues) {
  if (std::getenv("TRIREME_LONG_TESTS") == nullptr) {
    GTEST_SKIP() << "takes a minute, and Slurm 22.05 at times ends a requeued job as FAILED when its limit is raised "
                    "just then; set TRIREME_LONG_TESTS=1";
  }
  const Finished run = on_slurm(R"sh(
sed -i 's/"steps": 30, "checkpoint_every": 5/"steps": 100000000, "checkpoint_every": 100000000/' run.json
job=$(sbatch --parsable --time=2 --signal=B:USR1@118 "$SLURM_EXAMPLES/train.sbatch" run.json)
until [ "$(restarts_of "$job")" = 1 ]; do sleep 0.1; done
step=$(wc -l <runs/trireme-$job/metrics.jsonl)
echo "saved $(cat runs/trireme-$job/checkpoints/latest) after $step"
sed -i "s/\"steps\": [0-9]*/\"steps\": $((step + 20))/" run.json
scontrol update jobid=$job TimeLimit=60
start_again "$job" 1
wait_for is_in "$job" "COMPLETED FAILED"
state_of "$job"
grep -E "_job_complete|Requeuing|Allocate|time_limit" slurm/slurmctld.log
)sh");
  ASSERT_THAT(run.output, HasSubstr("COMPLETED")) << log_of("trireme-1");
  const int64_t last = steps_written("runs/trireme-1");
  EXPECT_THAT(run.output, HasSubstr(concat("saved global_step", last - 20, " after ", last - 20)));
  EXPECT_THAT(log_of("trireme-1"),
              AllOf(HasSubstr(concat("stopped by SIGUSR1 at step ", last - 20)),
                    HasSubstr(concat("continuing from runs/trireme-1/checkpoints/global_step", last - 20))));
  EXPECT_TRUE(state_of("runs/trireme-1", static_cast<int>(last)) == uninterrupted("", static_cast<int>(last)));
}

TEST_F(SlurmTest, ARequeueByTheUserSavesFirst) {
  const std::string settings = "--set training.steps=1000 --set training.checkpoint_every=100000";
  const Finished run = on_slurm(concat("settings=\"", settings, "\"\n", R"sh(
job=$(sbatch --parsable "$SLURM_EXAMPLES/train.sbatch" run.json $settings)
wait_for has_steps runs/trireme-$job 60
scontrol requeue "$job"
start_again "$job" 1
wait_for is_in "$job" "COMPLETED FAILED"
state_of "$job"
)sh"));
  EXPECT_THAT(run.output, HasSubstr("COMPLETED")) << log_of("trireme-1");
  EXPECT_THAT(log_of("trireme-1"), AllOf(HasSubstr("; continue with --resume"),
                                         HasSubstr("continuing from runs/trireme-1/checkpoints/global_step")));
  EXPECT_TRUE(state_of("runs/trireme-1", 1000) == uninterrupted(settings, 1000));
  EXPECT_EQ(steps_written("runs/trireme-1"), 1000) << "no step was lost";
}

TEST_F(SlurmTest, TheLauncherInABatchScriptStartsAKilledRankAgainInTheSameJob) {
  const std::string settings = "--set training.steps=400 --set training.checkpoint_every=40";
  const Finished run = on_slurm(concat("settings=\"", settings, "\"\n", R"sh(
job=$(sbatch --parsable "$SLURM_EXAMPLES/launcher.sbatch" run.json $settings)
wait_for has_steps runs/trireme-$job 60
kill -9 "$(rank_process 1)"
wait_for is_in "$job" "COMPLETED FAILED PENDING"
echo "$(state_of "$job") after $(restarts_of "$job") requeues"
)sh"));
  EXPECT_THAT(run.output, HasSubstr("COMPLETED after 0 requeues")) << log_of("trireme-1");
  EXPECT_THAT(log_of("trireme-1"), HasSubstr("rank 1 on n2 was killed by SIGKILL"));
  EXPECT_TRUE(state_of("runs/trireme-1", 400) == uninterrupted(settings, 400));
}

TEST_F(SlurmTest, WhatRequeuingCannotMendEnds) {
  const Finished run = on_slurm(R"sh(
job=$(sbatch --parsable "$SLURM_EXAMPLES/train.sbatch" absent.json)
wait_for is_in "$job" "COMPLETED FAILED"
echo "wrong input: $(state_of "$job") after $(restarts_of "$job")"
export TRIREME_FAULT="rank=1,step=2,phase=all_reduce,kind=kill"
job=$(sbatch --parsable "$SLURM_EXAMPLES/train.sbatch" run.json)
for failure in 1 2; do
  start_again "$job" $failure
done
wait_for is_in "$job" "COMPLETED FAILED"
echo "no progress: $(state_of "$job") after $(restarts_of "$job")"
)sh");
  EXPECT_THAT(run.output, AllOf(HasSubstr("wrong input: FAILED after 0"), HasSubstr("no progress: FAILED after 2")))
      << log_of("trireme-2");
  EXPECT_THAT(log_of("trireme-1"), HasSubstr("absent.json does not exist"));
  EXPECT_THAT(log_of("trireme-2"), HasSubstr("failed 3 times without a new checkpoint: given up"));
}

} // namespace
} // namespace trireme::tools
