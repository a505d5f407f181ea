#include "shell.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <sstream>

namespace trireme::tools {
namespace {

// Same initial weights (safetensors with Hugging Face's names), same tokens: the same losses as Python PyTorch.
class CurveTest : public RunFolder, public testing::WithParamInterface<int> {};

TEST_P(CurveTest, EqualsPythonPytorchForTwentySteps) {
  const Finished reference =
      sh(concat(TRIREME_SOURCE_DIR, "/.venv/bin/python ", TRIREME_SOURCE_DIR, "/tests/tools/reference_curve.py ", folder.string(), " 20 2>/dev/null"));
  ASSERT_EQ(reference.status, 0) << reference.output;
  write_file_atomically(folder / "run.json", R"({
  "model": {"type": "gpt", "layers": 2, "hidden": 32, "heads": 4, "sequence_length": 16, "vocab_size": 60, "init_from": "init.safetensors"},
  "data": {"type": "tokens", "train": ["tokens.bin"], "shuffle": false},
  "training": {"steps": 20},
  "engine": {"train_batch_size": 8, "gradient_clipping": 1.0,
             "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}}}})");
  const Finished run = train(concat("-n ", GetParam()));
  ASSERT_EQ(run.status, 0) << run.output;
  std::istringstream expected(reference.output);
  std::istringstream metrics(read_file(folder / "out/metrics.jsonl"));
  int steps = 0;
  for (double loss; expected >> loss; ++steps) {
    std::string line;
    ASSERT_TRUE(std::getline(metrics, line));
    EXPECT_NEAR(nlohmann::json::parse(line)["loss"].get<double>(), loss, 1e-4) << "step " << steps + 1;
  }
  EXPECT_EQ(steps, 20);
}

INSTANTIATE_TEST_SUITE_P(Ranks, CurveTest, testing::Values(1, 2, 4));

} // namespace
} // namespace trireme::tools
