// trireme train with parameter servers: processes that live by themselves, killed at random.
#include "shell.h"

#include "tests/support/sanitized.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <regex>
#include <sstream>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ServersTrainTest : public RunFolder {
 protected:
  void write_servers(const std::string& sync, int steps) {
    auto run = nlohmann::json::parse(read_file(folder / "run.json"));
    run["parallel"] = {{"sync", nlohmann::json::parse(sync)}};
    run["training"] = {{"steps", steps}};
    write_file_atomically(folder / "servers.json", run.dump());
  }
  Finished train(const std::string& file, const std::string& out, const std::string& more = "", const std::string& before = "") {
    return sh(concat(before, kTrireme, " train ", path(file), " -n 2 --out ", path(out), ' ', more));
  }
  // By step; of a step that was made twice the last.
  std::map<int64_t, double> values(const std::string& file, const std::string& key) {
    std::map<int64_t, double> all;
    std::istringstream lines(read_file(folder / file));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains(key)) {
        all[row.at("step")] = row.at(key);
      }
    }
    return all;
  }
  std::map<int64_t, double> losses(const std::string& out) {
    return values(out + "/metrics.jsonl", "loss");
  }
  // A shell command that kills the task with this variable as soon as metrics.jsonl has `lines` lines and `condition` holds.
  std::string killer(const std::string& out, int lines, const std::string& variable, const std::string& condition = "true") {
    return concat("(while [ \"$(cat ", path(out), "/metrics.jsonl 2>/dev/null | wc -l)\" -lt ", lines, " ] || ! (", condition, "); do sleep 0.01; done; for p in $(pgrep -f \"trireme-rank train.*", path(out),
                  "\"); do tr \"\\\\0\" \"\\\\n\" < /proc/$p/environ 2>/dev/null | grep -qx ", variable, " && kill -9 $p; done) & ");
  }
  static constexpr const char* kSlowly = "TRIREME_FAULT=rank=1,phase=step,kind=delay,seconds=0.02 "; // what is killed shall be killed before the end
  struct Account {
    std::string log;
    int64_t updates = 0;
    int64_t accepted = 0;
    int64_t dropped = 0;
    int64_t lost = 0;
    int64_t workers_lost = 0;
  };
  // What a server says at its end.
  Account account(const std::string& out, int server) {
    Account account;
    account.log = read_file(folder / out / concat("logs/server", server, ".log"));
    std::smatch found;
    const std::regex last("server [0-9]+: ([0-9]+) updates of ([0-9]+) gradients; ([0-9]+) came too late, ([0-9]+) were lost, ([0-9]+) workers were lost");
    EXPECT_TRUE(std::regex_search(account.log, found, last)) << account.log;
    int64_t* const numbers[] = {&account.updates, &account.accepted, &account.dropped, &account.lost, &account.workers_lost};
    for (size_t i = 0; i + 1 < found.size(); ++i) {
      *numbers[i] = std::stoll(found[i + 1]);
    }
    return account;
  }
  static int rounds() {
    return std::getenv("TRIREME_LONG_TESTS") != nullptr ? 20 : 1;
  }
};

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
  EXPECT_THAT(served.output, AllOf(HasSubstr("2 workers of 2 parameter servers (sync), "), HasSubstr("batch 12 = 6 x 1 accumulated x 2 workers")));
  const std::string log = read_file(folder / "served/logs/server1.log");
  EXPECT_THAT(log, HasSubstr("server 1: 30 updates of 60 gradients; 0 came too late, 0 were lost"));
  // What they saved is a checkpoint as any other.
  const Finished on = sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=32 -n 1 --out ", path("on"), " --resume ", path("served/checkpoints")));
  EXPECT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(losses("on").begin()->first, 31);
}

// Before, worker 1's good end made the job's: status 0, and nothing was saved.
TEST_F(ServersTrainTest, ATrainingWhoseResultCannotBeSavedFails) {
  write_servers(R"({"kind": "server", "servers": 1})", 6);
  const Finished run = train("servers.json", "out", "", "trap \"\" XFSZ; ulimit -f 32; "); // as a full disk
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("the last checkpoint could not be saved"), HasSubstr("worker 0 has trained to the end and could not save the result")));
  EXPECT_THAT(run.output, testing::Not(HasSubstr("starting it again")));
}

// It is late at every step, and at the last one nobody is there any more. The others' steps are its own: a run of 40 steps has 40 updates.
TEST_F(ServersTrainTest, AWorkerThatIsAlwaysLateEndsWithTheOthers) {
  write_servers(R"({"kind": "server", "servers": 2, "mode": "hybrid", "timeout_s": 0.01})", 40);
  const Finished late = train("servers.json", "late", "", "TRIREME_FAULT=rank=1,phase=backward,kind=delay,seconds=0.05 timeout -k 5 100 ");
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
  const Finished lost = train("servers.json", "out", "--max-restarts 0", "TRIREME_FAULT=\"rank=0,step=30,phase=backward,kind=kill\" ");
  ASSERT_EQ(lost.status, 0) << lost.output;
  EXPECT_THAT(read_file(folder / "out/logs/worker1.log"), HasSubstr("worker 1 reports, evaluates and saves from step 30 on"));
  EXPECT_EQ(losses("out").size(), 60u) << "each step is reported";
  const auto validation = values("out/metrics.jsonl", "val_loss");
  for (const int step : {20, 40, 60}) {
    EXPECT_TRUE(validation.contains(step)) << step;
    EXPECT_TRUE(std::filesystem::exists(folder / concat("out/checkpoints/global_step", step))) << step;
  }
  EXPECT_EQ(account("out", 0).updates, 60);
  const Finished on = sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=62 -n 1 --out ", path("on"), " --resume ", path("out/checkpoints")));
  EXPECT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(losses("on").begin()->first, 61);
}

// The first one comes back, claims the run folder, and is lost before its first step: the other one writes again.
TEST_F(ServersTrainTest, AnotherOneTakesOverAgainFromOneThatCameBackAndIsLost) {
  write_servers(R"({"kind": "server", "servers": 2})", 60);
  auto run = nlohmann::json::parse(read_file(folder / "servers.json"));
  run["training"].update({{"checkpoint_every", 20}});
  write_file_atomically(folder / "servers.json", run.dump());
  const Finished lost = train("servers.json", "out", "--max-restarts 1",
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
    const Finished killed = train("servers.json", out, "", killer(out, at, concat("TRIREME_SERVER=", server, "/2")) + kSlowly);
    ASSERT_EQ(killed.status, 0) << "server " << server << " at step " << at << ": " << killed.output;
    EXPECT_THAT(killed.output, HasSubstr("starting it again")) << "server " << server << " at step " << at;
    EXPECT_EQ(losses(out), expected) << "server " << server << " at step " << at << ": " << killed.output;
    EXPECT_TRUE(tensor_bytes_of_one(folder / out / "checkpoints/global_step60") == tensor_bytes_of_one(folder / "clean/checkpoints/global_step60")) << "server " << server << " at step " << at << ": " << killed.output;
  }
}

// Every gradient that a server has accepted is an update or part of one, and what is not says so. The worker that reports and saves is killed in every other round.
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
      const std::string joined = concat(has_joined, path(out), "/logs/server0.log && ", has_joined, path(out), "/logs/server1.log"); // without the others it does not wait in async
      const std::string slowly = concat("TRIREME_FAULT=rank=", 1 - victim, ",phase=step,kind=delay,seconds=0.02 "); // the other one shall not be done before it is back
      const Finished killed = train("servers.json", out, "", killer(out, at, concat("TRIREME_WORKER=", victim, "/2"), joined) + slowly);
      ASSERT_EQ(killed.status, 0) << what << ": " << killed.output;
      EXPECT_EQ(losses(out).rbegin()->first, kSteps) << what;
      EXPECT_THAT(read_file(folder / out / concat("logs/worker", victim, ".log")), HasSubstr(concat("worker ", victim, " goes on at step"))) << what;
      const Account first = account(out, 0);
      const Account second = account(out, 1);
      for (const Account& one : {first, second}) {
        EXPECT_THAT(one.log, HasSubstr(concat("worker ", victim, " is gone"))) << what;
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
      EXPECT_LE(std::abs(first.updates - second.updates), mode == "async" ? 1 : 0) << what << ": the last gradient may have come to one of them";
      EXPECT_LE(std::abs(first.accepted - second.accepted), 1) << what;
    }
  }
}

class GrpcTrainTest : public ServersTrainTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(TRIREME_BINARY_DIR "/lib/trireme/libtrireme_grpc.so")) {
      GTEST_SKIP() << "no gRPC: built without libgrpc++-dev";
    }
    if (test::kThreadSanitizer) {
      GTEST_SKIP() << "gRPC is not instrumented";
    }
    write_servers(R"({"kind": "server", "servers": 2, "snapshot_every": 1})", 40);
    ASSERT_EQ(train("servers.json", "tcp").status, 0);
    expected_ = losses("tcp");
    ASSERT_EQ(expected_.size(), 40u);
  }
  static std::string over(const std::string& transport) {
    return concat("--set parallel.sync.transport=", transport, ' ');
  }

  std::map<int64_t, double> expected_;
};

// The numbers are the same, whatever carries them; a server that is killed listens again at the same address.
TEST_F(GrpcTrainTest, AKilledServerOverGrpcEqualsTcp) {
  const Finished killed = train("servers.json", "grpc", over("grpc"), killer("grpc", 10, "TRIREME_SERVER=1/2") + kSlowly);
  ASSERT_EQ(killed.status, 0) << killed.output;
  EXPECT_THAT(killed.output, HasSubstr("starting it again"));
  EXPECT_EQ(losses("grpc"), expected_);
  EXPECT_THAT(account("grpc", 0).log, HasSubstr("server 0 of 2 at grpc://127.0.0.1:"));
  EXPECT_TRUE(tensor_bytes_of_one(folder / "grpc/checkpoints/global_step40") == tensor_bytes_of_one(folder / "tcp/checkpoints/global_step40"));
}

TEST_F(GrpcTrainTest, WithTlsEqualsTcp) {
  write_file_atomically(folder / "certificates.sh", R"(exec >/dev/null 2>&1; set -e; cd "$1"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=training -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=server -keyout server.key -out server.csr
echo subjectAltName=IP:127.0.0.1 > server.ext
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile server.ext -out server.pem
)");
  ASSERT_EQ(sh(concat("bash ", path("certificates.sh"), ' ', folder.string())).status, 0);
  const std::string files = concat("TRIREME_TLS_CERTIFICATE=", path("server.pem"), " TRIREME_TLS_KEY=", path("server.key"), ' ');
  const Finished run = train("servers.json", "grpcs", over("grpcs"), concat(files, "TRIREME_TLS_CA=", path("ca.pem"), ' '));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(losses("grpcs"), expected_);
  EXPECT_THAT(account("grpcs", 1).log, HasSubstr("server 1 of 2 at grpcs://127.0.0.1:"));
  const Finished stranger = train("servers.json", "stranger", over("grpcs"), files);
  EXPECT_EQ(stranger.status, 2) << stranger.output;
  EXPECT_THAT(stranger.output, HasSubstr("is not of an authority that this process trusts"));
  const Finished bare = train("servers.json", "bare", over("grpcs"));
  EXPECT_EQ(bare.status, 2) << bare.output;
  EXPECT_THAT(bare.output, HasSubstr("needs both TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY"));
}

TEST_F(GrpcTrainTest, TasksOfTfConfigEqualTcp) {
  write_file_atomically(folder / "tasks.sh", concat(R"(p=$((20000 + $$ % 12000))
task() {
  TF_CONFIG=$(printf '{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:%d", "127.0.0.1:%d"]}, "task": {"type": "%s", "index": %d}}' $p $((p + 1)) $1 $2) \
    )", kTrireme, " train ", path("servers.json"), " --set parallel.sync.transport=grpc --out ", path("out"), R"(
}
task ps 0 & task ps 1 & task worker 1 &
task worker 0; status=$?
wait; exit $status
)"));
  const Finished tasks = sh(concat("bash ", path("tasks.sh")));
  ASSERT_EQ(tasks.status, 0) << tasks.output;
  EXPECT_THAT(tasks.output, HasSubstr("server 1 of 2 at grpc://127.0.0.1:"));
  const std::map<int64_t, double> found = losses("out");
  ASSERT_EQ(found.size(), expected_.size());
  for (const auto& [step, loss] : expected_) {
    EXPECT_NEAR(found.at(step), loss, 1e-4 * loss) << "step " << step; // nobody has shared out the cores
  }
}

TEST_F(ServersTrainTest, WithoutTheModuleGrpcIsRefused) {
  write_servers(R"({"kind": "server", "transport": "grpc"})", 5);
  const Finished run = train("servers.json", "none", "", "TRIREME_GRPC_MODULE=/nowhere/libtrireme_grpc.so ");
  EXPECT_EQ(run.status, 2) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("/nowhere/libtrireme_grpc.so"), HasSubstr("apt-get install libgrpc++-dev")));
  write_servers(R"({"kind": "all_reduce", "transport": "grpc"})", 5);
  EXPECT_THAT(train("servers.json", "other").output, HasSubstr("it is of the kind \"server\", and the kind is \"all_reduce\""));
}

// Each worker is rank 0 of its own world.
TEST_F(ServersTrainTest, AFaultStrikesTheWorkerOfItsNumber) {
  write_servers(R"({"kind": "server", "servers": 1})", 30);
  const Finished faulty = train("servers.json", "faulty", "--max-restarts 1", "TRIREME_FAULT=rank=1,step=5,phase=forward,kind=kill ");
  ASSERT_EQ(faulty.status, 0) << faulty.output;
  EXPECT_EQ(losses("faulty").size(), 30u);
  const Account server = account("faulty", 0);
  EXPECT_THAT(server.log, AllOf(HasSubstr("worker 1 is gone at clock 4"), testing::Not(HasSubstr("worker 0 is gone"))));
  EXPECT_EQ(server.workers_lost, 1);
}

// Tasks that somebody else starts, as TensorFlow's: chief, worker, ps and evaluator.
TEST_F(ServersTrainTest, TasksOfTfConfigAreWorkersAndServers) {
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 400; ++i) {
    tokens.push_back(static_cast<uint16_t>(i * 7 % 50));
  }
  write_tokens("validation.bin", tokens);
  write_servers(R"({"kind": "server", "servers": 1})", 30);
  auto run = nlohmann::json::parse(read_file(folder / "servers.json"));
  run["data"]["validation"] = {"validation.bin"};
  run["training"].update({{"checkpoint_every", 10}, {"eval_every", 10}, {"eval_batches", 2}, {"keep_checkpoints", 1}});
  write_file_atomically(folder / "servers.json", run.dump());
  write_file_atomically(folder / "tasks.sh", concat(R"(p=$((20000 + $$ % 12000))
task() {
  TF_CONFIG=$(printf '{"cluster": {"chief": ["127.0.0.1:%d"], "worker": ["127.0.0.1:%d"], "ps": ["127.0.0.1:%d"]}, "task": {"type": "%s", "index": 0}}' $((p + 1)) $((p + 2)) $p $1) \
    )", kTrireme, " train ", path("servers.json"), " --out ", path("out"), R"(
}
task ps & task worker &
task evaluator & evaluator=$!
task chief; status=$?
wait $evaluator || exit 9
wait; exit $status
)"));
  const Finished tasks = sh(concat("bash ", path("tasks.sh")));
  ASSERT_EQ(tasks.status, 0) << tasks.output;
  EXPECT_THAT(tasks.output, HasSubstr("30 updates of 60 gradients"));
  ASSERT_EQ(train("run.json", "plain", "--set training.checkpoint_every=0").status, 0);
  const std::map<int64_t, double> found = losses("out");
  for (const auto& [step, loss] : losses("plain")) {
    EXPECT_NEAR(found.at(step), loss, 1e-4 * loss) << "step " << step;
  }
  // The evaluator has seen checkpoints, each once and the last in any case, as the first worker has evaluated these steps.
  const std::map<int64_t, double> trained = values("out/metrics.jsonl", "val_loss");
  const std::map<int64_t, double> evaluated = values("out/metrics.evaluator.jsonl", "val_loss");
  ASSERT_EQ(evaluated.count(30), 1u);
  for (const auto& [step, loss] : evaluated) {
    ASSERT_TRUE(trained.contains(step)) << step;
    EXPECT_NEAR(loss, trained.at(step), 1e-6 * loss) << "step " << step;
  }
  const std::string lines = read_file(folder / "out/metrics.evaluator.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), std::ssize(evaluated)) << "each once";
  EXPECT_EQ(sh(concat("bash ", path("tasks.sh"))).status, 2) << "the others are refused, and the evaluator, which has seen all, ends well";
  EXPECT_EQ(read_file(folder / "out/metrics.evaluator.jsonl"), lines);
  write_file_atomically(folder / "wrong.sh", concat(R"(TF_CONFIG='{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}' )", kTrireme, " train ", path("run.json"), " --out ", path("no"), '\n'));
  EXPECT_THAT(sh(concat("bash ", path("wrong.sh"))).output, HasSubstr("makes this process a parameter server, and the run file has none"));
}

// Of ranks that evaluate together as much is read as all of them read. It waits for the first checkpoint, and goes on where another evaluator has stopped.
TEST_F(ServersTrainTest, AnEvaluatorOfDataParallelRanksSaysWhatTheyHaveSaid) {
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 1000; ++i) {
    tokens.push_back(static_cast<uint16_t>(i * i % 50));
  }
  write_tokens("validation.bin", tokens);
  auto run = nlohmann::json::parse(read_file(folder / "run.json"));
  run["data"]["validation"] = {"validation.bin"};
  run["training"] = {{"steps", 10}, {"checkpoint_every", 5}, {"eval_every", 5}, {"eval_batches", 2}};
  run["engine"]["bf16"] = {{"enabled", true}};
  write_file_atomically(folder / "evaluated.json", run.dump());
  const std::string evaluator = concat("TF_CONFIG='{\"cluster\": {\"worker\": [\"127.0.0.1:1\", \"127.0.0.1:2\"]}, \"task\": {\"type\": \"evaluator\", \"index\": 0}}' ", kTrireme, " train ", path("evaluated.json"), " --out ", path("out"));
  write_file_atomically(folder / "evaluator.sh", concat(evaluator, " \"$@\"\n"));
  const Finished both = sh(concat("bash ", path("evaluator.sh"), " & evaluator=$!; ", kTrireme, " train ", path("evaluated.json"), " -n 2 --out ", path("out"), " && wait $evaluator"));
  ASSERT_EQ(both.status, 0) << both.output;
  const std::map<int64_t, double> trained = values("out/metrics.jsonl", "val_loss");
  for (const auto& [step, loss] : values("out/metrics.evaluator.jsonl", "val_loss")) {
    EXPECT_NEAR(loss, trained.at(step), 1e-6 * loss) << "step " << step;
  }
  ASSERT_EQ(trained.size(), 2u);
  ASSERT_EQ(values("out/metrics.evaluator.jsonl", "val_loss").count(10), 1u);
  // The run goes on, the evaluator too.
  const Finished more = sh(concat(kTrireme, " train ", path("evaluated.json"), " -n 2 --out ", path("out"), " --resume --set training.steps=20 && bash ", path("evaluator.sh"), " --set training.steps=20"));
  ASSERT_EQ(more.status, 0) << more.output;
  const std::map<int64_t, double> evaluated = values("out/metrics.evaluator.jsonl", "val_loss");
  ASSERT_EQ(evaluated.count(20), 1u);
  EXPECT_EQ(evaluated.count(10), 1u);
  EXPECT_NEAR(evaluated.at(20), values("out/metrics.jsonl", "val_loss").at(20), 1e-6 * evaluated.at(20));
  const Finished nothing = sh(concat("bash ", path("evaluator.sh"), " --set data.validation=null --set training.eval_every=0 --set training.eval_batches=0"));
  EXPECT_EQ(nothing.status, 2);
  EXPECT_THAT(nothing.output, HasSubstr("the run has nothing to evaluate on"));
}

// Of a training that has ended early there is no last checkpoint to wait for.
TEST_F(ServersTrainTest, AnEvaluatorEndsAfterATrainingThatHasEnded) {
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 1000; ++i) {
    tokens.push_back(static_cast<uint16_t>(i * i % 50));
  }
  write_tokens("validation.bin", tokens);
  auto run = nlohmann::json::parse(read_file(folder / "run.json"));
  run["data"]["validation"] = {"validation.bin"};
  run["training"] = {{"steps", 10}, {"checkpoint_every", 5}, {"eval_batches", 2}};
  write_file_atomically(folder / "evaluated.json", run.dump());
  ASSERT_EQ(sh(concat(kTrireme, " train ", path("evaluated.json"), " --out ", path("out"))).status, 0);
  const std::string evaluator = concat("TRIREME_TIMEOUT=0.5 TF_CONFIG='{\"cluster\": {\"worker\": [\"127.0.0.1:1\"]}, \"task\": {\"type\": \"evaluator\", \"index\": 0}}' exec timeout -s KILL 120 ", kTrireme, " train ",
                                       path("evaluated.json"), " --out ", path("out"), " --set training.steps=20");
  write_file_atomically(folder / "evaluator.sh", concat(evaluator, "\n"));
  const Finished ended = sh(concat("bash ", path("evaluator.sh")));
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("the training has saved nothing after step 10 of 20, and seems to have ended"), HasSubstr("out/logs/lock"), HasSubstr("--resume")));
  EXPECT_EQ(values("out/metrics.evaluator.jsonl", "val_loss").count(10), 1u);
  // While the lock is held it waits.
  const Finished held = sh(concat("exec 9>>", path("out/logs/lock"), "; flock 9; bash ", path("evaluator.sh"), " & evaluator=$!; sleep 8; kill -0 $evaluator && echo it waits; kill $evaluator; wait $evaluator"));
  EXPECT_THAT(held.output, HasSubstr("it waits"));
}

TEST_F(ServersTrainTest, WhatDoesNotGoTogetherIsRefused) {
  write_servers(R"({"kind": "server", "servers": 1, "mode": "async", "staleness": 2})", 30);
  EXPECT_THAT(train("servers.json", "a").output, HasSubstr("it is of the mode \"stale\", and the mode is \"async\""));
  write_servers(R"({"kind": "local_sgd", "servers": 1, "every": 5})", 30);
  EXPECT_THAT(train("servers.json", "b").output, HasSubstr("it is of the kind \"server\", and the kind is \"local_sgd\""));
  write_servers(R"({"kind": "local_sgd"})", 30);
  EXPECT_THAT(train("servers.json", "c").output, HasSubstr("30 is not a multiple of 50"));
  write_servers(R"({"kind": "server"})", 30);
  EXPECT_THAT(train("servers.json", "d", "--set parallel.pipe=2").output, HasSubstr("a worker of parameter servers is one process"));
  EXPECT_THAT(train("servers.json", "e", "--set engine.zero_optimization.stage=1").output, HasSubstr("parameter servers with ZeRO stage 1"));
  EXPECT_THAT(train("servers.json", "g", "--set engine.fp16.enabled=true").output, HasSubstr("parameter servers with fp16"));
  EXPECT_THAT(train("servers.json", "h", "--set engine.sync_batch_norm=true").output, HasSubstr("parameter servers with sync_batch_norm"));
  EXPECT_THAT(train("servers.json", "f", "--set engine.optimizer.params.state_dtype=int8").output, HasSubstr("parameter servers with 8-bit optimizer states"));
  EXPECT_THAT(train("servers.json", "i", "--set engine.optimizer.type=Lamb --set parallel.sync.sparse_rows=transformer.wte").output, HasSubstr("parameter servers with sparse_rows and LAMB"));
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
