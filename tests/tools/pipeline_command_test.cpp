#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PipelineCommandTest : public RunFolder {
 protected:
  PipelineCommandTest() {
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += concat("line ", i % 23, " of a text that repeats itself\n");
    }
    write_file_atomically(folder / "text.txt", text);
    write_file_atomically(folder / "run.json", R"({
  "model": {"type": "gpt", "layers": 2, "hidden": 32, "heads": 4, "sequence_length": 16, "vocab_size": 256},
  "data": {"type": "text", "train": ["text.txt"], "validation_fraction": 0.1, "tokenizer": "bytes"},
  "parallel": {"pipe": 2},
  "training": {"steps": 12, "checkpoint_every": 6, "sample": {"prompt": "line ", "tokens": 10}},
  "engine": {"train_batch_size": 8, "gradient_accumulation_steps": 4, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}}})");
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

TEST_F(PipelineCommandTest, TrainsWritesAndGenerates) {
  const Finished run = train("-n 4");
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("2 pipeline stages"), HasSubstr("transformer.h.1"), HasSubstr("the model writes")));
  EXPECT_THAT(read_file(folder / "out/report.html"), HasSubstr("2 stages x 2 replicas"));
  const Finished text = sh(concat(kTrireme, " generate ", (folder / "out").string(), " --prompt line --tokens 5"));
  EXPECT_EQ(text.status, 0) << text.output;
}

TEST_F(PipelineCommandTest, ARunOfTwoStagesContinuesInOneProcess) {
  ASSERT_EQ(train("-n 2 --set training.steps=6").status, 0);
  const Finished rest = train("-n 1 --resume --set parallel.pipe=1 --set engine.gradient_accumulation_steps=1");
  ASSERT_EQ(rest.status, 0) << rest.output;
  const auto resumed = metrics();
  std::filesystem::remove_all(folder / "out");
  ASSERT_EQ(train("-n 1 --set parallel.pipe=1 --set engine.gradient_accumulation_steps=1").status, 0);
  const auto whole = metrics();
  ASSERT_EQ(resumed.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_NEAR(resumed[i]["loss"].get<double>(), whole[i]["loss"].get<double>(), 1e-4) << "step " << i + 1;
  }
}

TEST_F(PipelineCommandTest, BadRequestsEndBeforeAnythingStarts) {
  const auto refused = [&](const std::string& arguments) {
    const Finished run = train(arguments);
    EXPECT_EQ(run.status, 2) << run.output;
    return run.output;
  };
  EXPECT_THAT(refused("-n 3"), AllOf(HasSubstr("-n 3 ranks"), HasSubstr("2 pipeline stages"), HasSubstr("-n 2, 4")));
  EXPECT_THAT(refused("-n 9 --set parallel.pipe=9 --set engine.gradient_accumulation_steps=8"),
              HasSubstr("6 layers cannot fill 9 stages"));
  EXPECT_THAT(refused("-n 2 --set engine.pipeline.partition=type:Conv"), HasSubstr("Conv"));
}

} // namespace
} // namespace trireme::tools
