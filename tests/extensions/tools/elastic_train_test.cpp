// trireme train with replicas that are lost and come: killed at random, with nobody lost the losses of ranks of one
// world.
#include <tests/tools/shell.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <map>
#include <random>
#include <sstream>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int kEvery = 10;

class ElasticTrainTest : public RunFolder {
 protected:
  void write_elastic(const std::string& name, bool elastic, int steps, const char* more = "{}") {
    auto run = nlohmann::json::parse(read_file(folder / "run.json"));
    run["parallel"] = {
        {"sync", {{"kind", "local_sgd"}, {"every", kEvery}, {"outer", "nesterov"}, {"elastic", elastic}}}};
    run["training"] = {{"steps", steps}, {"checkpoint_every", steps / 2}};
    run["data"]["validation"] = run["data"]["train"][0];
    run["training"]["eval_every"] = steps / 2;
    run["training"]["eval_batches"] = 4;
    run.update(nlohmann::json::parse(more), true);
    write_file_atomically(folder / name, run.dump());
  }
  Finished train(const std::string& file, const std::string& out, int workers, const std::string& more = "",
                 const std::string& before = "") {
    return sh(concat(before, kTrireme, " train ", path(file), " -n ", workers, " --out ", path(out), ' ', more), 300);
  }
  std::map<int64_t, nlohmann::json> rows(const std::string& out) {
    std::map<int64_t, nlohmann::json> all;
    std::istringstream lines(read_file(folder / out / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      EXPECT_TRUE(all.emplace(row.at("step"), row).second) << "step " << row.at("step") << " comes twice";
    }
    return all;
  }
  // A shell command that kills the task with this variable as soon as metrics.jsonl has `lines` lines.
  std::string killer(const std::string& out, int lines, const std::string& variable) {
    return concat("(while [ \"$(cat ", path(out), "/metrics.jsonl 2>/dev/null | wc -l)\" -lt ", lines,
                  " ]; do sleep 0.01; done; for p in $(pgrep -f \"trireme-rank train.*", path(out),
                  "\"); do tr \"\\\\0\" \"\\\\n\" < /proc/$p/environ 2>/dev/null | grep -qx ", variable,
                  " && kill -9 $p; done) & ");
  }
  static int rounds() { return std::getenv("TRIREME_LONG_TESTS") != nullptr ? 20 : 1; }
};

TEST_F(ElasticTrainTest, WithNobodyLostHasTheLossesOfOneWorld) {
  write_elastic("world.json", false, 40);
  write_elastic("elastic.json", true, 40);
  const std::string same = "OMP_NUM_THREADS=1 "; // the store is one more process among the cores
  const Finished world = train("world.json", "world", 2, "", same);
  ASSERT_EQ(world.status, 0) << world.output;
  const Finished elastic = train("elastic.json", "elastic", 2, "", same);
  ASSERT_EQ(elastic.status, 0) << elastic.output;
  EXPECT_THAT(elastic.output,
              AllOf(HasSubstr("averaging: 2 of 2 replicas begin"), HasSubstr("2 replicas that average every 10 steps"),
                    HasSubstr("batch 12 = 6 x 1 accumulated x 2 replicas")));
  const auto expected = rows("world");
  const auto found = rows("elastic");
  ASSERT_EQ(found.size(), 40u);
  for (const auto& [step, row] : found) {
    if (step % kEvery != 0) { // at a meeting the one is the mean, the other the first replica's own
      EXPECT_EQ(row.at("loss"), expected.at(step).at("loss")) << "step " << step;
    }
    EXPECT_EQ(row.contains("val_loss"), expected.at(step).contains("val_loss")) << "step " << step;
    if (row.contains("val_loss")) { // one evaluates what two share
      EXPECT_GT(row.at("val_loss").get<double>(), 0) << "step " << step;
    }
  }
  // Any layout goes on from what it has saved, and it from any.
  const Finished on = sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=42 -n 1 --out ",
                                path("on"), " --resume ", path("elastic/checkpoints")));
  EXPECT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(rows("on").begin()->first, 41);
  const Finished again =
      train("elastic.json", "again", 3,
            concat("--set training.steps=60 --set training.checkpoint_every=0 --set training.eval_every=0 --resume ",
                   path("world/checkpoints")));
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(rows("again").begin()->first, 41);
  EXPECT_EQ(rows("again").rbegin()->first, 60);
}

TEST_F(ElasticTrainTest, TheRunGoesOnWithoutAKilledReplicaAndWithItAgain) {
  write_elastic("elastic.json", true, 1000); // it comes again before the end
  std::mt19937 random(static_cast<unsigned>(::getpid()));
  for (int round = 0; round < rounds(); ++round) {
    const std::string out = concat("killed", round);
    const int at = 5 + static_cast<int>(random() % 60);
    const Finished killed = train("elastic.json", out, 3, "", killer(out, at, "TRIREME_WORKER=1/3"));
    ASSERT_EQ(killed.status, 0) << "at step " << at << ": " << killed.output;
    EXPECT_THAT(killed.output,
                AllOf(HasSubstr("worker 1"), HasSubstr("starting it again (restart 1 of 9)"),
                      ContainsRegex("averaging, step [0-9]+: replica 1 is lost; the mean is of 2 replicas"),
                      ContainsRegex("averaging, step [0-9]+: replica 1 joins and begins with the mean of 2 replicas")))
        << "at step " << at;
    EXPECT_THAT(read_file(folder / out / "logs/worker1.log"), HasSubstr("replica 1 goes on at step"))
        << "at step " << at;
    const auto found = rows(out);
    EXPECT_EQ(found.size(), 1000u) << "at step " << at;
    EXPECT_TRUE(found.at(1000).contains("val_loss"));
  }
}

// Of the first one too: another one reports, evaluates and saves.
TEST_F(ElasticTrainTest, AnotherOneTakesOverWhenTheFirstIsKilled) {
  write_elastic("elastic.json", true, 1000);
  const Finished killed = train("elastic.json", "out", 2, "", killer("out", 35, "TRIREME_WORKER=0/2"));
  ASSERT_EQ(killed.status, 0) << killed.output;
  EXPECT_THAT(read_file(folder / "out/logs/worker1.log"),
              ContainsRegex("replica 1 reports, evaluates and saves from step [0-9]+ on"));
  const auto found = rows("out");
  EXPECT_EQ(found.rbegin()->first, 1000);
  EXPECT_GE(found.size(), 1000u - kEvery) << "what the first one had not reported of its last round";
  EXPECT_TRUE(found.at(1000).contains("val_loss"));
  const Finished on = sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=1002 -n 1 --out ",
                                path("on"), " --resume ", path("out/checkpoints")));
  EXPECT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(rows("on").begin()->first, 1001);
}

// Before, its replicas were started again and trained all of it anew until no restart was left.
TEST_F(ElasticTrainTest, ATrainingWhoseResultCannotBeSavedFails) {
  write_elastic("run2.json", true, 20);
  const Finished run = train("run2.json", "out", 2, "", "trap \"\" XFSZ; ulimit -f 32; "); // as a full disk
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, testing::AllOf(testing::HasSubstr("could not save the result"),
                                         testing::Not(testing::HasSubstr("starting it again"))));
}

TEST_F(ElasticTrainTest, AReplicaThatIsLostForGoodIsDoneWithout) {
  write_elastic("elastic.json", true, 100);
  const Finished killed =
      train("elastic.json", "out", 2, "--max-restarts 1",
            "TRIREME_FAULT=\"rank=1,step=25,phase=backward,kind=kill;rank=1,phase=data,kind=kill,attempt=1\" ");
  ASSERT_EQ(killed.status, 0) << killed.output;
  EXPECT_THAT(killed.output, HasSubstr("replica 1 is lost; the mean is of 1 replica"));
  EXPECT_EQ(rows("out").size(), 100u);
}

// Its stretch lasts longer than the others would wait for it. It trained by itself then, in the same run folder, with
// status 0 and no warning.
TEST_F(ElasticTrainTest, AReplicaThatIsKilledInALongStretchIsNoSecondTraining) {
  write_elastic("elastic.json", true, 40, R"({"training": {"checkpoint_every": 10}})");
  const Finished undisturbed = train("elastic.json", "undisturbed", 2);
  ASSERT_EQ(undisturbed.status, 0) << undisturbed.output;
  const auto expected = rows("undisturbed");
  for (int round = 0; round < rounds(); ++round) {
    const std::string out = concat("long", round);
    const int killed = round % 2 == 0 ? 1 : 0;
    const int at = 11 + round % 8; // in the stretch from step 11 to 20
    const Finished long_stretch = train("elastic.json", out, 2, "",
                                        concat("TRIREME_TIMEOUT=8 TRIREME_FAULT=\"rank=", killed, ",step=", at,
                                               ",phase=backward,kind=kill;rank=", 1 - killed,
                                               ",step=19,phase=backward,kind=delay,seconds=20,attempt=0\" "));
    ASSERT_EQ(long_stretch.status, 0) << "killed " << killed << " at step " << at << ": " << long_stretch.output;
    const std::string log = read_file(folder / out / concat("logs/worker", killed, ".log"));
    EXPECT_THAT(
        log,
        AllOf(ContainsRegex("elastic: waiting for the 1 member of round [0-9]+ to come to the end of their stretch"),
              ContainsRegex(concat("replica ", killed, " goes on at step 20"))));
    const auto found = rows(out); // none twice
    const int first_reports =
        killed == 1
            ? 20
            : at - 1; // what it has reported before the mean is of one: its losses are those of a run without a fault
    for (int step = 1; step <= 40; ++step) {
      const bool reported = step <= first_reports || step >= 20; // by the other one from the next meeting on
      ASSERT_EQ(found.contains(step), reported) << "killed " << killed << " at step " << at << ", step " << step;
      if (reported) {
        EXPECT_TRUE(found.at(step).at("loss").is_number())
            << "killed " << killed << " at step " << at << ", step " << step << " is not finite";
      }
      if (step <= first_reports) {
        EXPECT_EQ(found.at(step).at("loss"), expected.at(step).at("loss"))
            << "killed " << killed << " at step " << at << ", step " << step;
      }
    }
    EXPECT_TRUE(found.at(40).contains("val_loss"));
    EXPECT_TRUE(std::filesystem::exists(folder / out / "checkpoints/latest"));
  }
}

// What the store knew is lost with it: the replicas find each other again, and none begins anew.
TEST_F(ElasticTrainTest, AKilledStoreIsStartedAgain) {
  write_elastic("elastic.json", true, 1000);
  const Finished killed = train("elastic.json", "out", 2, "", killer("out", 35, "TRIREME_SERVER=0/1"));
  ASSERT_EQ(killed.status, 0) << killed.output;
  EXPECT_THAT(killed.output, AllOf(HasSubstr("server 0"), HasSubstr("starting it again (restart 1 of 6)")));
  const auto found = rows("out"); // none twice
  EXPECT_TRUE(found.contains(1000));
  EXPECT_GE(found.size(), 1000u - kEvery)
      << "a meeting that the loss interrupts may count for one of them only, which then reports";
}

// Both at once, in a stretch that lasts longer than the others wait for a beginning: the store knows nobody, and a
// replica that is started again is the first to come.
TEST_F(ElasticTrainTest, AReplicaThatIsKilledWithTheStoreIsNoSecondTraining) {
  std::string slowly;
  for (int step = 12; step <= 17; ++step) {
    slowly += concat(";rank=0,step=", step, ",phase=backward,kind=delay,seconds=2.5,attempt=0");
  }
  write_elastic("elastic.json", true, 40, R"({"training": {"checkpoint_every": 10}})");
  const Finished killed =
      train("elastic.json", "out", 2, "",
            concat(killer("out", 11, "TRIREME_SERVER=0/1"),
                   "TRIREME_TIMEOUT=6 TRIREME_FAULT=\"rank=1,step=12,phase=backward,kind=kill", slowly, "\" "));
  ASSERT_EQ(killed.status, 0) << killed.output;
  EXPECT_THAT(read_file(folder / "out/logs/worker0.log"), HasSubstr("reconnected to the job's store"));
  EXPECT_THAT(read_file(folder / "out/logs/worker1.log"), HasSubstr("replica 1 goes on at step 20"));
  EXPECT_EQ(rows("out").size(), 40u) << "none twice";
}

// Each is a world of its own, and they share the disk: it is spoken of once, for both. The samples of a step are
// divided among both too.
TEST_F(ElasticTrainTest, TheDiskOfAHostIsSpokenOfForAllItsReplicas) {
  const std::string more = concat(
      R"({"training": {"checkpoint_every": 0, "eval_every": 0}, "engine": {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2,
    "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": ")",
      path("nvme"), R"("}}}})");
  write_elastic("elastic.json", true, 10, more.c_str());
  const Finished trained = train("elastic.json", "out", 2, "--all-output");
  ASSERT_EQ(trained.status, 0) << trained.output;
  EXPECT_THAT(trained.output,
              AllOf(HasSubstr("files of 2 ranks need "), testing::Not(HasSubstr("files of 1 rank need "))));
  EXPECT_EQ(trained.output.find("a step takes at least "), trained.output.rfind("a step takes at least "))
      << trained.output;
}

TEST_F(ElasticTrainTest, WhatDoesNotGoTogetherIsRefused) {
  write_elastic("elastic.json", true, 40);
  EXPECT_THAT(train("elastic.json", "a", 2, "--set training.eval_every=5").output,
              HasSubstr("training.eval_every: 5 is not a multiple of 10"));
  EXPECT_THAT(train("elastic.json", "b", 2, "--set parallel.pipe=2").output,
              HasSubstr("with a replica of 2 ranks: an elastic replica is one process"));
  EXPECT_THAT(train("elastic.json", "c", 2, "--set parallel.sync.kind=server").output,
              HasSubstr("needs kind \"local_sgd\", but the kind is \"server\""));
  EXPECT_THAT(
      sh(concat("RANK=0 WORLD_SIZE=2 ", kTrireme, " train ", path("elastic.json"), " --out ", path("d"))).output,
      HasSubstr("replicas that come and go (\"elastic\") live by themselves"));
  auto run = nlohmann::json::parse(read_file(folder / "run.json"));
  run["engine"]["parameter_averaging"] = {{"every", 5}, {"elastic", true}, {"start_step", 5}};
  write_file_atomically(folder / "wrong.json", run.dump());
  EXPECT_THAT(train("wrong.json", "e", 2).output, HasSubstr("start_step: is 5, with \"elastic\""));
}

} // namespace
} // namespace trireme::tools
