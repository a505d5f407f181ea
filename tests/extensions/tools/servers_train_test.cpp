// trireme train with parameter servers: processes that live by themselves, killed at random.
#include "servers_fixture.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <map>
#include <random>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(ServersTrainTest, WorkersAndServersEqualRanks) {
  write_servers(R"({"kind": "server", "servers": 2})", 30);
  const Finished plain = train("run.json", "plain", "--set training.checkpoint_every=0");
  ASSERT_EQ(plain.status, 0) << plain.output;
  const Finished served = train("servers.json", "served");
  ASSERT_EQ(served.status, 0) << served.output;
  const std::map<int64_t, double> expected = losses("plain");
  const std::map<int64_t, double> found = losses("served");
  ASSERT_EQ(found.size(), 30u);
  for (const auto& [step, loss] : expected) {
    EXPECT_NEAR(found.at(step), loss, 1e-4 * loss) << "step " << step;
  }
  EXPECT_THAT(served.output, AllOf(HasSubstr("2 workers of 2 parameter servers (sync), "),
                                   HasSubstr("batch 12 = 6 x 1 accumulated x 2 workers")));
  const std::string log = read_file(folder / "served/logs/server1.log");
  EXPECT_THAT(log, HasSubstr("server 1: 30 updates of 60 gradients; 0 came too late, 0 were lost"));
  // What they saved is a checkpoint as any other.
  const Finished on = sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=32 -n 1 --out ",
                                path("on"), " --resume ", path("served/checkpoints")));
  EXPECT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(losses("on").begin()->first, 31);
}

// Before, worker 1's good end made the job's: status 0, and nothing was saved.
TEST_F(ServersTrainTest, ATrainingWhoseResultCannotBeSavedFails) {
  write_servers(R"({"kind": "server", "servers": 1})", 6);
  const Finished run = train("servers.json", "out", "", "trap \"\" XFSZ; ulimit -f 32; "); // as a full disk
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("the last checkpoint could not be saved"),
                                HasSubstr("worker 0 has finished training and could not save the result")));
  EXPECT_THAT(run.output, testing::Not(HasSubstr("starting it again")));
}

// It is late at every step, and at the last one nobody is there any more. The others' steps are its own: a run of 40
// steps has 40 updates.
TEST_F(ServersTrainTest, AWorkerThatIsAlwaysLateEndsWithTheOthers) {
  write_servers(R"({"kind": "server", "servers": 2, "mode": "hybrid", "timeout_s": 0.01})", 40);
  const Finished late = train("servers.json", "late", "",
                              "TRIREME_FAULT=rank=1,phase=backward,kind=delay,seconds=0.05 timeout -k 5 100 ");
  ASSERT_EQ(late.status, 0) << late.output;
  EXPECT_EQ(losses("late").rbegin()->first, 40);
  EXPECT_GT(account("late", 0).dropped, 0) << account("late", 0).log;
  EXPECT_EQ(account("late", 0).updates, 40);
  EXPECT_EQ(account("late", 1).updates, 40);
}

// Another worker reports, evaluates and saves.
TEST_F(ServersTrainTest, AnotherOneTakesOverWhenTheFirstIsLostForGood) {
  write_servers(R"({"kind": "server", "servers": 2})", 60);
  auto run = nlohmann::json::parse(read_file(folder / "servers.json"));
  run["data"]["validation"] = run["data"]["train"][0];
  run["training"].update({{"eval_every", 20}, {"eval_batches", 2}, {"checkpoint_every", 20}});
  write_file_atomically(folder / "servers.json", run.dump());
  const Finished lost =
      train("servers.json", "out", "--max-restarts 0", "TRIREME_FAULT=\"rank=0,step=30,phase=backward,kind=kill\" ");
  ASSERT_EQ(lost.status, 0) << lost.output;
  EXPECT_THAT(read_file(folder / "out/logs/worker1.log"),
              HasSubstr("worker 1 reports, evaluates and saves from step 30 on"));
  EXPECT_EQ(losses("out").size(), 60u) << "each step is reported";
  const auto validation = values("out/metrics.jsonl", "val_loss");
  for (const int step : {20, 40, 60}) {
    EXPECT_TRUE(validation.contains(step)) << step;
    EXPECT_TRUE(std::filesystem::exists(folder / concat("out/checkpoints/global_step", step))) << step;
  }
  EXPECT_EQ(account("out", 0).updates, 60);
  const Finished on = sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=62 -n 1 --out ",
                                path("on"), " --resume ", path("out/checkpoints")));
  EXPECT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(losses("on").begin()->first, 61);
}

// The first one comes back, claims the run folder, and is lost before its first step: the other one writes again.
TEST_F(ServersTrainTest, AnotherOneTakesOverAgainFromOneThatCameBackAndIsLost) {
  write_servers(R"({"kind": "server", "servers": 2})", 60);
  auto run = nlohmann::json::parse(read_file(folder / "servers.json"));
  run["training"].update({{"checkpoint_every", 20}});
  write_file_atomically(folder / "servers.json", run.dump());
  const Finished lost =
      train("servers.json", "out", "--max-restarts 1",
            "TRIREME_FAULT=\"rank=0,step=5,phase=backward,kind=kill;rank=0,phase=data,kind=kill,attempt=1;"
            "rank=1,phase=backward,kind=delay,seconds=0.5\" ");
  ASSERT_EQ(lost.status, 0) << lost.output;
  const auto reported = losses("out");
  for (int64_t step = 31; step <= 60; ++step) { // and before it was replaced
    EXPECT_TRUE(reported.contains(step)) << step;
  }
  for (const int step : {40, 60}) {
    EXPECT_TRUE(std::filesystem::exists(folder / concat("out/checkpoints/global_step", step))) << step;
  }
}

// A snapshot of every update: what a server has answered is on its disk, so the run ends as if nothing had been.
TEST_F(ServersTrainTest, AKilledServerIsStartedAgainAndLosesNothing) {
  write_servers(R"({"kind": "server", "servers": 2, "snapshot_every": 1, "sparse_rows": "transformer.w"})", 60);
  auto run = nlohmann::json::parse(read_file(folder / "servers.json"));
  run["model"].update({{"vocab_size", 300}, {"tie_embeddings", false}}); // most rows never have a gradient
  write_file_atomically(folder / "servers.json", run.dump());
  ASSERT_EQ(train("servers.json", "clean").status, 0);
  const std::map<int64_t, double> expected = losses("clean");
  std::mt19937 random(static_cast<unsigned>(::getpid()));
  for (int round = 0; round < rounds(); ++round) {
    const std::string out = concat("killed", round);
    const int at = 5 + static_cast<int>(random() % 40);
    const int server = static_cast<int>(random() % 2);
    const Finished killed =
        train("servers.json", out, "", killer(out, at, concat("TRIREME_SERVER=", server, "/2")) + kSlowly);
    ASSERT_EQ(killed.status, 0) << "server " << server << " at step " << at << ": " << killed.output;
    EXPECT_THAT(killed.output, HasSubstr("starting it again")) << "server " << server << " at step " << at;
    EXPECT_EQ(losses(out), expected) << "server " << server << " at step " << at << ": " << killed.output;
    EXPECT_TRUE(tensor_bytes_of_one(folder / out / "checkpoints/global_step60") ==
                tensor_bytes_of_one(folder / "clean/checkpoints/global_step60"))
        << "server " << server << " at step " << at << ": " << killed.output;
  }
}

// Every gradient that a server has accepted is an update or part of one, and what is not says so. The worker that
// reports and saves is killed in every other round.
TEST_F(ServersTrainTest, TheRunGoesOnWithoutAKilledWorkerAndWithItAgain) {
  constexpr int kSteps = 600; // it comes again before the end
  std::mt19937 random(static_cast<unsigned>(::getpid()));
  for (const std::string mode : {"sync", "async"}) {
    write_servers(concat(R"({"kind": "server", "servers": 2, "mode": ")", mode, "\"}"), kSteps);
    for (int round = 0; round < rounds(); ++round) {
      const std::string out = concat(mode, round);
      const int at = 5 + static_cast<int>(random() % 30);
      const int victim = round % 2 == 0 ? 1 : 0;
      const std::string what = concat(mode, ", worker ", victim, " at step ", at);
      const std::string has_joined = concat("grep -qs \"worker ", victim, " of 2 has joined\" ");
      const std::string joined = concat(has_joined, path(out), "/logs/server0.log && ", has_joined, path(out),
                                        "/logs/server1.log"); // without the others it does not wait in async
      const std::string slowly =
          concat("TRIREME_FAULT=rank=", 1 - victim,
                 ",phase=step,kind=delay,seconds=0.02 "); // the other one shall not be done before it is back
      const Finished killed =
          train("servers.json", out, "", killer(out, at, concat("TRIREME_WORKER=", victim, "/2"), joined) + slowly);
      ASSERT_EQ(killed.status, 0) << what << ": " << killed.output;
      EXPECT_EQ(losses(out).rbegin()->first, kSteps) << what;
      EXPECT_THAT(read_file(folder / out / concat("logs/worker", victim, ".log")),
                  HasSubstr(concat("worker ", victim, " goes on at step")))
          << what;
      const Account first = account(out, 0);
      const Account second = account(out, 1);
      for (const Account& one : {first, second}) {
        EXPECT_THAT(one.log, HasSubstr(concat("lost worker ", victim, " at clock"))) << what;
        EXPECT_EQ(one.workers_lost, 1) << what;
        EXPECT_EQ(one.lost, 0) << what << ": the other worker commits what both have pushed";
        if (mode == "async") {
          EXPECT_EQ(one.accepted, one.updates) << what;
          EXPECT_GE(one.updates, kSteps) << what;
        } else {
          EXPECT_EQ(one.updates, kSteps) << what;
          EXPECT_GT(one.accepted, kSteps) << what;
          EXPECT_LE(one.accepted, 2 * kSteps) << what;
        }
      }
      EXPECT_LE(std::abs(first.updates - second.updates), mode == "async" ? 1 : 0)
          << what << ": the last gradient may have come to one of them";
      EXPECT_LE(std::abs(first.accepted - second.accepted), 1) << what;
    }
  }
}

TEST_F(ServersTrainTest, WithoutTheModuleGrpcIsRefused) {
  write_servers(R"({"kind": "server", "transport": "grpc"})", 5);
  const Finished run = train("servers.json", "none", "", "TRIREME_GRPC_MODULE=/nowhere/libtrireme_grpc.so ");
  EXPECT_EQ(run.status, 2) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("/nowhere/libtrireme_grpc.so"), HasSubstr("apt-get install libgrpc++-dev")));
  write_servers(R"({"kind": "all_reduce", "transport": "grpc"})", 5);
  EXPECT_THAT(train("servers.json", "other").output,
              HasSubstr("needs kind \"server\", but the kind is \"all_reduce\""));
}

// Each worker is rank 0 of its own world.
TEST_F(ServersTrainTest, AFaultStrikesTheWorkerOfItsNumber) {
  write_servers(R"({"kind": "server", "servers": 1})", 30);
  const Finished faulty =
      train("servers.json", "faulty", "--max-restarts 1", "TRIREME_FAULT=rank=1,step=5,phase=forward,kind=kill ");
  ASSERT_EQ(faulty.status, 0) << faulty.output;
  EXPECT_EQ(losses("faulty").size(), 30u);
  const Account server = account("faulty", 0);
  EXPECT_THAT(server.log, AllOf(HasSubstr("lost worker 1 at clock 4"), testing::Not(HasSubstr("lost worker 0"))));
  EXPECT_EQ(server.workers_lost, 1);
}

TEST_F(ServersTrainTest, WhatDoesNotGoTogetherIsRefused) {
  write_servers(R"({"kind": "server", "servers": 1, "mode": "async", "staleness": 2})", 30);
  EXPECT_THAT(train("servers.json", "a").output, HasSubstr("needs mode \"stale\", but the mode is \"async\""));
  write_servers(R"({"kind": "local_sgd", "servers": 1, "every": 5})", 30);
  EXPECT_THAT(train("servers.json", "b").output, HasSubstr("needs kind \"server\", but the kind is \"local_sgd\""));
  write_servers(R"({"kind": "local_sgd"})", 30);
  EXPECT_THAT(train("servers.json", "c").output, HasSubstr("30 is not a multiple of 50"));
  write_servers(R"({"kind": "server"})", 30);
  EXPECT_THAT(train("servers.json", "d", "--set parallel.pipe=2").output,
              HasSubstr("parameter servers with a replica of 2 ranks: a worker is one process"));
  EXPECT_THAT(train("servers.json", "e", "--set engine.zero_optimization.stage=1").output,
              HasSubstr("parameter servers with ZeRO stage 1"));
  EXPECT_THAT(train("servers.json", "g", "--set engine.fp16.enabled=true").output,
              HasSubstr("parameter servers with fp16"));
  EXPECT_THAT(train("servers.json", "h", "--set engine.sync_batch_norm=true").output,
              HasSubstr("parameter servers with sync_batch_norm"));
  EXPECT_THAT(train("servers.json", "f", "--set engine.optimizer.params.state_dtype=int8").output,
              HasSubstr("parameter servers with 8-bit optimizer states"));
  EXPECT_THAT(
      train("servers.json", "i", "--set engine.optimizer.type=Lamb --set parallel.sync.sparse_rows=transformer.wte")
          .output,
      HasSubstr("sparse_rows with LAMB"));
}

// The run file's short form is the engine's section.
TEST_F(ServersTrainTest, LocalSgdIsParameterAveraging) {
  write_servers(R"({"kind": "local_sgd", "every": 5, "outer": "nesterov"})", 30);
  ASSERT_EQ(train("servers.json", "short").status, 0);
  auto run = nlohmann::json::parse(read_file(folder / "run.json"));
  run["engine"]["parameter_averaging"] = {{"every", 5}, {"outer_optimizer", "nesterov"}};
  write_file_atomically(folder / "long.json", run.dump());
  ASSERT_EQ(train("long.json", "long").status, 0);
  EXPECT_EQ(losses("short"), losses("long"));
}

} // namespace
} // namespace trireme::tools
