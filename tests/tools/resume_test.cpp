// Where a restarted job goes on that was told to begin at a checkpoint.
#include "shell.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public RunFolder {
 protected:
  void SetUp() override {
    const Finished run = train_into("a", "");
    ASSERT_EQ(run.status, 0) << run.output;
  }
  Finished train_into(const std::string& out, const std::string& options, const std::string& faults = "") const {
    return sh(concat(faults.empty() ? "" : concat("TRIREME_FAULT=\"", faults, "\" "), kTrireme, " train ",
                     path("run.json"), " -n 2 --out ", path(out), " --set training.keep_checkpoints=0 ", options));
  }
  std::string state_of(const std::string& out) const {
    return tensor_bytes(folder / out / "checkpoints/global_step30");
  }
  nlohmann::json restarts_of(const std::string& out) const {
    return nlohmann::json::parse(read_file(folder / out / "launch.json")).at("restarts");
  }
  int64_t lines_of_metrics(const std::string& out) const {
    const std::string metrics = read_file(folder / out / "metrics.jsonl");
    return std::count(metrics.begin(), metrics.end(), '\n');
  }
  std::string continuing(const std::string& out, int step) const {
    return concat("continuing from ", path(out), "/checkpoints/global_step", step, " at step ", step);
  }
};

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST_F(ResumeTest, BeforeTheFirstSaveARestartBeginsAtThePathAgain) {
  const Finished run =
      train_into("b", concat("--max-restarts 1 --resume ", path("a"), "/checkpoints/global_step10"),
                 "rank=0,step=13,phase=all_reduce,kind=kill"); // rank 0 has written its line of step 12
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(count(run.output, continuing("a", 10)), 2) << run.output;
  EXPECT_TRUE(state_of("b") == state_of("a"));
  EXPECT_EQ(lines_of_metrics("b"), 20);
  ASSERT_EQ(restarts_of("b").size(), 1u);
  EXPECT_EQ(restarts_of("b")[0].at("steps_lost"), 2);
}

// What "auto" has chosen is for its budget; the run file that the checkpoint has is not the engine's section alone.
TEST_F(ResumeTest, AChoiceOfActivationsIsUsedAgainForTheSameBudgetOnly) {
  const auto budget = [](const std::string& bytes) {
    return concat(
        "--set engine.activation_checkpointing.policy=auto --set engine.activation_checkpointing.memory_budget=", bytes,
        ' ');
  };
  const Finished first = train_into("b", budget("20MB"));
  ASSERT_EQ(first.status, 0) << first.output;
  const std::string on = concat("--set training.steps=34 --resume ", path("b"), "/checkpoints");
  const Finished same = train_into("c", budget("20MB") + on);
  EXPECT_EQ(same.status, 0) << same.output;
  EXPECT_EQ(count(same.output, "using the choice of the run"), 1) << same.output;
  const Finished less = train_into("d", budget("300kB") + on);
  EXPECT_EQ(less.status, 0) << less.output;
  EXPECT_EQ(count(less.output, "using the choice of the run"), 0) << less.output;
}

TEST_F(ResumeTest, AfterASaveARestartGoesOnFromThat) {
  const Finished run =
      train_into("b", concat("--max-restarts 2 --resume ", path("a"), "/checkpoints/global_step10"),
                 "rank=1,step=13,phase=all_reduce,kind=kill;rank=0,step=17,phase=all_reduce,kind=kill,attempt=1");
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(count(run.output, continuing("a", 10)), 2) << run.output;
  EXPECT_EQ(count(run.output, continuing("b", 15)), 1) << run.output;
  EXPECT_TRUE(state_of("b") == state_of("a"));
  EXPECT_EQ(lines_of_metrics("b"), 20);
}

// The run folder holds later checkpoints, of what is to be undone.
TEST_F(ResumeTest, ARollbackStaysARollback) {
  const std::string rate = " --set engine.optimizer.params.lr=0.003";
  EXPECT_EQ(train_into("d", concat("--resume ", path("a"), " --set training.steps=31")).status, 0)
      << "a run folder will do";
  EXPECT_EQ(lines_of_metrics("d"), 1);
  const Finished clean = train_into("c", concat("--resume ", path("a"), "/checkpoints/global_step10", rate));
  ASSERT_EQ(clean.status, 0) << clean.output;
  ASSERT_FALSE(state_of("c") == state_of("a")) << "the rate must matter";
  const Finished run =
      train_into("a", concat("--max-restarts 2 --resume ", path("a"), "/checkpoints/global_step10", rate),
                 "rank=1,step=13,phase=all_reduce,kind=kill;rank=0,step=17,phase=all_reduce,kind=kill,attempt=1");
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(count(run.output, continuing("a", 10)), 2) << run.output;
  EXPECT_EQ(count(run.output, continuing("a", 15)), 1) << run.output;
  EXPECT_TRUE(state_of("a") == state_of("c"));
  EXPECT_EQ(lines_of_metrics("a"), 30);
  ASSERT_EQ(restarts_of("a").size(), 2u);
  const nlohmann::json lost =
      restarts_of("a")[0].at("steps_lost"); // rank 1 may die before rank 0 has written its line of step 12
  EXPECT_TRUE(lost == 1 || lost == 2) << lost;
  EXPECT_EQ(restarts_of("a")[1].at("steps_lost"), 1);
}

} // namespace
} // namespace trireme::tools
