// Tasks of TF_CONFIG, which somebody else starts: workers, parameter servers and evaluators.
#include "servers_fixture.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TfConfigTrainTest : public ServersTrainTest {};

// Tasks that somebody else starts, as TensorFlow's: chief, worker, ps and evaluator.
TEST_F(TfConfigTrainTest, TasksOfTfConfigAreWorkersAndServers) {
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
  write_file_atomically(folder / "tasks.sh",
                        concat(R"(p=$((20000 + $$ % 12000))
task() {
  TF_CONFIG=$(printf '{"cluster": {"chief": ["127.0.0.1:%d"], "worker": ["127.0.0.1:%d"], "ps": ["127.0.0.1:%d"]}, "task": {"type": "%s", "index": 0}}' $((p + 1)) $((p + 2)) $p $1) \
    )",
                               kTrireme, " train ", path("servers.json"), " --out ", path("out"), R"(
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
  // The evaluator has seen checkpoints, each once and the last in any case, as the first worker has evaluated these
  // steps.
  const std::map<int64_t, double> trained = values("out/metrics.jsonl", "val_loss");
  const std::map<int64_t, double> evaluated = values("out/metrics.evaluator.jsonl", "val_loss");
  ASSERT_EQ(evaluated.count(30), 1u);
  for (const auto& [step, loss] : evaluated) {
    ASSERT_TRUE(trained.contains(step)) << step;
    EXPECT_NEAR(loss, trained.at(step), 1e-6 * loss) << "step " << step;
  }
  const std::string lines = read_file(folder / "out/metrics.evaluator.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), std::ssize(evaluated)) << "each once";
  EXPECT_EQ(sh(concat("bash ", path("tasks.sh"))).status, 2)
      << "the others are refused, and the evaluator, which has seen all, ends well";
  EXPECT_EQ(read_file(folder / "out/metrics.evaluator.jsonl"), lines);
  write_file_atomically(
      folder / "wrong.sh",
      concat(R"(TF_CONFIG='{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}' )",
             kTrireme, " train ", path("run.json"), " --out ", path("no"), '\n'));
  EXPECT_THAT(sh(concat("bash ", path("wrong.sh"))).output,
              HasSubstr("makes this process a parameter server, but the run file has none"));
}

// Of ranks that evaluate together as much is read as all of them read. It waits for the first checkpoint, and goes on
// where another evaluator has stopped.
TEST_F(TfConfigTrainTest, AnEvaluatorOfDataParallelRanksSaysWhatTheyHaveSaid) {
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
  const std::string evaluator = concat(
      "TF_CONFIG='{\"cluster\": {\"worker\": [\"127.0.0.1:1\", \"127.0.0.1:2\"]}, \"task\": {\"type\": \"evaluator\", "
      "\"index\": 0}}' ",
      kTrireme, " train ", path("evaluated.json"), " --out ", path("out"));
  write_file_atomically(folder / "evaluator.sh", concat(evaluator, " \"$@\"\n"));
  const Finished both = sh(concat("bash ", path("evaluator.sh"), " & evaluator=$!; ", kTrireme, " train ",
                                  path("evaluated.json"), " -n 2 --out ", path("out"), " && wait $evaluator"));
  ASSERT_EQ(both.status, 0) << both.output;
  const std::map<int64_t, double> trained = values("out/metrics.jsonl", "val_loss");
  for (const auto& [step, loss] : values("out/metrics.evaluator.jsonl", "val_loss")) {
    EXPECT_NEAR(loss, trained.at(step), 1e-6 * loss) << "step " << step;
  }
  ASSERT_EQ(trained.size(), 2u);
  ASSERT_EQ(values("out/metrics.evaluator.jsonl", "val_loss").count(10), 1u);
  // The run goes on, the evaluator too.
  const Finished more =
      sh(concat(kTrireme, " train ", path("evaluated.json"), " -n 2 --out ", path("out"),
                " --resume --set training.steps=20 && bash ", path("evaluator.sh"), " --set training.steps=20"));
  ASSERT_EQ(more.status, 0) << more.output;
  const std::map<int64_t, double> evaluated = values("out/metrics.evaluator.jsonl", "val_loss");
  ASSERT_EQ(evaluated.count(20), 1u);
  EXPECT_EQ(evaluated.count(10), 1u);
  EXPECT_NEAR(evaluated.at(20), values("out/metrics.jsonl", "val_loss").at(20), 1e-6 * evaluated.at(20));
  const Finished nothing =
      sh(concat("bash ", path("evaluator.sh"),
                " --set data.validation=null --set training.eval_every=0 --set training.eval_batches=0"));
  EXPECT_EQ(nothing.status, 2);
  EXPECT_THAT(nothing.output, HasSubstr("the run has no validation data"));
}

// Of a training that has ended early there is no last checkpoint to wait for.
TEST_F(TfConfigTrainTest, AnEvaluatorEndsAfterATrainingThatHasEnded) {
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
  const std::string evaluator = concat(
      "TRIREME_TIMEOUT=0.5 TF_CONFIG='{\"cluster\": {\"worker\": [\"127.0.0.1:1\"]}, \"task\": {\"type\": "
      "\"evaluator\", \"index\": 0}}' exec timeout -s KILL 120 ",
      kTrireme, " train ", path("evaluated.json"), " --out ", path("out"), " --set training.steps=20");
  write_file_atomically(folder / "evaluator.sh", concat(evaluator, "\n"));
  const Finished ended = sh(concat("bash ", path("evaluator.sh")));
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("the training has saved nothing after step 10 of 20, and seems to have ended"),
                    HasSubstr("out/logs/lock"), HasSubstr("--resume")));
  EXPECT_EQ(values("out/metrics.evaluator.jsonl", "val_loss").count(10), 1u);
  // While the lock is held it waits.
  const Finished held =
      sh(concat("exec 9>>", path("out/logs/lock"), "; flock 9; bash ", path("evaluator.sh"),
                " & evaluator=$!; sleep 8; kill -0 $evaluator && echo it waits; kill $evaluator; wait $evaluator"));
  EXPECT_THAT(held.output, HasSubstr("it waits"));
}

} // namespace
} // namespace trireme::tools
