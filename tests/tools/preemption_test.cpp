// trireme train is told to stop: it saves and goes on another time as if nothing had been.
#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <random>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PreemptionCommandTest : public RunFolder {
 protected:
  // Long enough to be met in the middle; no checkpoint but the last and those of a preemption.
  static constexpr const char* kLong = " --set training.steps=1000 --set training.checkpoint_every=100000";

  std::string command(const std::string& out) const {
    return concat(kTrireme, " train ", path("run.json"), " -n 2 --out ", path(out), kLong);
  }
  // Runs it and sends `signal` as soon as metrics.jsonl has so many lines; `then` is what else to do, $p is the
  // launcher.
  Finished run_and_signal(const std::string& run, const std::string& out, int lines, const std::string& signal,
                          const std::string& then = ":") const {
    return sh(concat(run, " & p=$!; while kill -0 $p && [ \"$(cat ", path(out),
                     "/metrics.jsonl 2>/dev/null | wc -l)\" -lt ", lines, " ]; do sleep 0.01; done; kill -", signal,
                     " $p; ", then, "; wait $p"));
  }
  nlohmann::json report(const std::string& out) const {
    return nlohmann::json::parse(read_file(folder / out / "launch.json"));
  }
  std::string final_state(const std::string& out) const {
    return tensor_bytes(folder / out / "checkpoints/global_step1000");
  }
};

TEST_F(PreemptionCommandTest, StopsSavesAndContinuesBitForBit) {
  ASSERT_EQ(sh(command("clean")).status, 0);
  EXPECT_EQ(report("clean")["status"], "finished");
  EXPECT_EQ(fs::status(folder / "clean").permissions(), fs::perms::owner_all);
  std::mt19937 random(::getpid());
  for (const std::string signal : {"TERM", "USR1"}) {
    const std::string out = "out" + signal;
    const int first = 5 + static_cast<int>(random() % 150);
    SCOPED_TRACE(concat(signal, " after step ", first));
    const Finished stopped = run_and_signal(command(out), out, first, signal);
    EXPECT_EQ(stopped.status, 0) << stopped.output;
    EXPECT_THAT(stopped.output,
                AllOf(HasSubstr(concat("stopped by SIG", signal, " at step ")), HasSubstr("; continue with --resume")));
    EXPECT_EQ(report(out)["status"], "preempted");
    EXPECT_THAT(read_file(folder / out / "report.html"), HasSubstr("preempted at step "));
    EXPECT_FALSE(fs::exists(folder / out / "checkpoints/global_step1000"));
    const std::string so_far = read_file(folder / out / "metrics.jsonl");
    const int lines = static_cast<int>(std::count(so_far.begin(), so_far.end(), '\n')) + 100;
    const Finished again = run_and_signal(command(out) + " --resume", out, lines, signal);
    EXPECT_EQ(again.status, 0) << again.output;
    const Finished rest = sh(command(out) + " --resume");
    EXPECT_EQ(rest.status, 0) << rest.output;
    EXPECT_TRUE(final_state(out) == final_state("clean"));
    const std::string metrics = read_file(folder / out / "metrics.jsonl");
    EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 1000);
  }
}

// Before the ranks can answer, there is nothing to save, and the job is stopped as asked all the same.
TEST_F(PreemptionCommandTest, ASignalInTheFirstMomentsStopsItToo) {
  for (const char* later : {"0", "0.05", "0.1", "0.2", "0.3", "0.5"}) {
    const std::string out = concat("out", later);
    const Finished run = sh(concat(command(out), " --stopped-status 75 & p=$!; while [ ! -e ", path(out),
                                   "/logs/lock ]; do sleep 0.001; done; sleep ", later, "; kill -TERM $p; wait $p"),
                            60);
    EXPECT_EQ(run.status, 75) << later << " s after its beginning: " << run.output;
    EXPECT_EQ(report(out)["status"], "preempted");
    EXPECT_EQ(report(out)["exit_code"], 75);
    if (!fs::exists(folder / out / "checkpoints/latest")) {
      EXPECT_THAT(run.output, HasSubstr("stopped before anything was saved"));
    }
  }
}

TEST_F(PreemptionCommandTest, ASecondSignalIsNow) {
  // Ranks that are stopped cannot save.
  const std::string stop_ranks = concat("pkill -STOP -f \"[t]rireme-rank train.*", path("out"), "\"");
  const Finished run = sh(concat(command("out"), " & p=$!; while [ \"$(cat ", path("out"),
                                 "/metrics.jsonl 2>/dev/null | wc -l)\" -lt 5 ]; do sleep 0.01; done; ", stop_ranks,
                                 "; kill -TERM $p; sleep 0.5; kill -0 $p && echo still there; kill -TERM $p; wait $p"),
                          100);
  EXPECT_EQ(run.status, 143) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("still there"), Not(HasSubstr("did not end"))));
  EXPECT_EQ(report("out")["status"], "stopped");
}

TEST_F(PreemptionCommandTest, TheInterruptKeyDoesNotSave) {
  const Finished run = run_and_signal(command("out"), "out", 5, "INT");
  EXPECT_EQ(run.status, 130) << run.output;
  EXPECT_THAT(run.output, HasSubstr("stopped before anything was saved"));
  EXPECT_FALSE(fs::exists(folder / "out/checkpoints/latest"));
}

// A training that began elsewhere would not find that again by itself.
TEST_F(PreemptionCommandTest, TheInterruptKeySaysWhereToBeginAgain) {
  ASSERT_EQ(train("-n 1 --set training.steps=5").status, 0);
  const Finished run = run_and_signal(concat(command("other"), " --resume ", path("out")), "other", 1, "INT");
  EXPECT_EQ(run.status, 130) << run.output;
  EXPECT_THAT(run.output,
              HasSubstr(concat("stopped before anything was saved: begin again with --resume ", path("out"))));
}

TEST_F(PreemptionCommandTest, TheGraceEndsIt) {
  const std::string stop_ranks = concat("pkill -STOP -f \"[t]rireme-rank train.*", path("out"), "\"");
  const Finished run = sh(concat(command("out"), " --grace 0.5 & p=$!; while [ \"$(cat ", path("out"),
                                 "/metrics.jsonl 2>/dev/null | wc -l)\" -lt 5 ]; do sleep 0.01; done; ", stop_ranks,
                                 "; kill -TERM $p; wait $p"),
                          100);
  EXPECT_EQ(run.status, 143) << run.output;
  EXPECT_THAT(run.output, HasSubstr("did not end within 500 ms of SIGTERM and was killed"));
}

} // namespace
} // namespace trireme::tools
