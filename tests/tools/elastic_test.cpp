// trireme train on several "hosts": agents that a script starts on this machine in place of ssh.
#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class ElasticTest : public RunFolder {
 protected:
  ElasticTest() {
    write_file_atomically(folder / "rsh",
                          concat("#!/bin/sh\nhost=$1; shift; echo $$ > ", path("agent."), "$host; exec \"$@\"\n"));
    fs::permissions(folder / "rsh", fs::perms::owner_all);
  }
  void write_hosts(const std::vector<int>& slots) const {
    std::string text = "# addresses of the loopback network that no interface has\n";
    for (size_t i = 0; i < slots.size(); ++i) {
      text += concat(static_cast<char>('a' + i), " slots=", slots[i], " address=127.0.0.", i + 2, "\n");
    }
    write_file_atomically(folder / "hosts", text);
  }
  std::string command(const std::string& rest) const {
    return concat(kTrireme, " train ", path("run.json"), " --out ", path("out"), " --hostfile ", path("hosts"),
                  " --rsh ", path("rsh"), ' ', rest);
  }
  // Runs it and kills the agent of `host` when so many steps are done.
  Finished lose_host(const std::string& run, const std::string& host, int lines) const {
    return sh(concat(run, " & p=$!; while kill -0 $p && [ \"$(cat ", path("out"),
                     "/metrics.jsonl 2>/dev/null | wc -l)\" -lt ", lines, " ]; do sleep 0.01; done; kill -9 $(cat ",
                     path("agent." + host), "); wait $p"));
  }
  std::vector<nlohmann::json> metrics() const {
    std::istringstream lines(read_file(folder / "out/metrics.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) {
      all.push_back(nlohmann::json::parse(line));
    }
    return all;
  }
};

TEST_F(ElasticTest, TwoHostsTrainAsOne) {
  write_hosts({2, 1});
  // As many threads as with three ranks on one host: more of them add in another order.
  const Finished run = sh(command("--env OMP_NUM_THREADS=1"));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("batch 12 = 4 x 1 accumulated x 3 ranks"));
  const auto hosts = metrics();
  fs::remove_all(folder / "out");
  ASSERT_EQ(train("-n 3 -x OMP_NUM_THREADS=1").status, 0);
  const auto one = metrics();
  ASSERT_EQ(hosts.size(), one.size());
  EXPECT_EQ(hosts.back()["loss"], one.back()["loss"]);
}

TEST_F(ElasticTest, ALostHostLeavesASmallerWorldWithTheSameBatch) {
  write_hosts({2, 2});
  // A last batch of an epoch that is not full is cut into micro-batches differently: leave it away.
  const std::string settings = "--set training.steps=150 --set engine.dataloader_drop_last=true";
  const Finished run = lose_host(command("--min-nodes 1 --max-restarts 1 " + settings), "b", 40);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(
      run.output,
      AllOf(HasSubstr("host b (ranks 2 to 3) is lost"),
            HasSubstr("smaller world: 2 of 4 ranks; the batch of 12 stays, 3 x 2 accumulated x 2 data-parallel"),
            HasSubstr("batch 12 = 3 x 2 accumulated x 2 ranks"), HasSubstr("running again: failure noticed at "),
            HasSubstr("1 restart: ")));
  EXPECT_EQ(metrics().size(), 150u);
  const auto report = nlohmann::json::parse(read_file(folder / "out/launch.json"));
  ASSERT_EQ(report["restarts"].size(), 1u);
  EXPECT_THAT(report["restarts"][0]["cause"].get<std::string>(), HasSubstr("host b was lost"));
  EXPECT_GT(report["restarts"][0]["down_seconds"].get<double>(), 0);
  EXPECT_LT(report["ettr"].get<double>(), 1);
  // The same samples in the same order: the losses go on where they were.
  const auto all = metrics();
  fs::remove_all(folder / "out");
  ASSERT_EQ(train("-n 4 " + settings).status, 0);
  const auto whole = metrics();
  ASSERT_EQ(whole.size(), all.size());
  double furthest = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    furthest = std::max(furthest, std::abs(all[i]["loss"].get<double>() - whole[i]["loss"].get<double>()));
  }
  EXPECT_LT(furthest, 2e-3);
}

TEST_F(ElasticTest, SlotsThatDoNotDivideTheBatchStayIdle) {
  write_hosts({5, 1});
  // 6 ranks take 2 samples each; 5 could not share 12.
  const Finished run = lose_host(command("--min-nodes 1 --max-restarts 1 --set training.steps=150"), "b", 20);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("4 of 6 ranks; the batch of 12 stays, 1 x 3 accumulated x 4 data-parallel (12 does "
                                    "not divide by 5, so 1 slot stays idle)"));
}

TEST_F(ElasticTest, AModelThatNoLongerFitsEndsTheRun) {
  write_hosts({1, 1});
  const Finished run = lose_host(command("--min-nodes 1 --max-restarts 1 --set training.steps=100000 --set "
                                         "parallel.pipe=2 --set engine.train_micro_batch_size_per_gpu=6"),
                                 "b", 10);
  EXPECT_EQ(run.status, 2) << run.output;
  EXPECT_THAT(run.output, HasSubstr("the model needs 2 ranks (pipe * context * tensor), only 1 slot is left"));
  EXPECT_THAT(read_file(folder / "out/launch.json"), HasSubstr("\"status\": \"failed\""));
}

TEST_F(ElasticTest, ASignalSavesOnAllHosts) {
  write_hosts({1, 1});
  const Finished run =
      sh(concat(command("--set training.steps=100000"), " & p=$!; while [ \"$(cat ", path("out"),
                "/metrics.jsonl 2>/dev/null | wc -l)\" -lt 5 ]; do sleep 0.01; done; kill -TERM $p; wait $p"));
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, testing::AnyOf(HasSubstr("stopped by SIGTERM at step "),
                                         HasSubstr("stopped by a signal to another rank at step ")))
      << "rank 0's own signal may come after another rank's";
  EXPECT_THAT(read_file(folder / "out/launch.json"),
              testing::AllOf(HasSubstr("\"status\": \"preempted\""), HasSubstr("\"signal\": 15")));
  EXPECT_TRUE(fs::exists(folder / "out/checkpoints/latest"));
}

TEST_F(ElasticTest, RefusesWhatCannotBe) {
  write_hosts({1, 1});
  Finished run = sh(command("-n 3"));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("3 ranks do not fit on the 2 slots of"));
  run = sh(command("--min-nodes 3"));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("the job cannot run on 3 to 2 of 2 hosts"));
  run = train("-n 2 --min-nodes 2");
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("Name them in a file and give it with --hostfile"));
  std::ofstream(folder / "hosts") << "node1 slots=two\n";
  run = sh(command(""));
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("hosts:1"));
}

} // namespace
} // namespace trireme::tools
