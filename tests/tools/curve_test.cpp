#include "shell.h"

#include <tests/support/folders.h>
#include <tests/support/made_once.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cctype>
#include <cstdlib>
#include <sstream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

// Same initial weights (safetensors with Hugging Face's names), same tokens: the same losses and gradient norms as
// Python PyTorch.
class CurveTest : public RunFolder, public testing::WithParamInterface<const char*> {};

TEST_P(CurveTest, EqualsPythonPytorchForTwentySteps) {
  const fs::path reference = test::made_once("curve", [](const fs::path& made) {
    const Finished python =
        sh(concat("\"" + test::python() + "\" \"" + test::source_dir() + "/tests/tools/reference_curve.py\" ",
                  made.string(), " 20 2>", made.string(), "/errors >", made.string(), "/expected"));
    ASSERT_EQ(python.status, 0) << read_file(made / "errors");
  });
  fs::copy(reference, folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  write_file_atomically(folder / "run.json", R"({
  "model": {"type": "gpt", "layers": 2, "hidden": 32, "heads": 4, "sequence_length": 16, "vocab_size": 60, "init_from": "init.safetensors"},
  "data": {"type": "tokens", "train": ["tokens.bin"], "shuffle": false},
  "training": {"steps": 20},
  "engine": {"train_batch_size": 8, "gradient_clipping": 1.0,
             "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}}}})");
  const Finished run = train(GetParam());
  ASSERT_EQ(run.status, 0) << run.output;
  std::istringstream expected(read_file(folder / "expected"));
  std::istringstream metrics(read_file(folder / "out/metrics.jsonl"));
  int steps = 0;
  for (double loss, norm; expected >> loss >> norm; ++steps) {
    std::string line;
    ASSERT_TRUE(std::getline(metrics, line));
    const auto step = nlohmann::json::parse(line);
    EXPECT_NEAR(step.at("loss").get<double>(), loss, 1e-5 * loss) << "step " << steps + 1;
    EXPECT_NEAR(step.at("grad_norm").get<double>(), norm, 1e-5 * norm) << "step " << steps + 1;
  }
  EXPECT_EQ(steps, 20);
}

// Data parallel, tensor parallel, pipelines, and all at once; the order of the samples and their batches is the same in
// all.
INSTANTIATE_TEST_SUITE_P(
    Ranks, CurveTest,
    testing::Values(
        "-n 1", "-n 2", "-n 4", "-n 2 --set parallel.pipe=2 --set engine.gradient_accumulation_steps=4",
        "-n 4 --set parallel.pipe=2 --set parallel.schedule=zero-bubble --set engine.gradient_accumulation_steps=2",
        "-n 2 --set parallel.pipe=2 --set parallel.schedule=interleaved --set engine.gradient_accumulation_steps=4",
        "-n 2 --set parallel.tensor=2", "-n 2 --set parallel.context=2",
        "-n 4 --set parallel.context=2 --set parallel.context_kind=ulysses --set parallel.tensor=2",
        "-n 4 --set parallel.tensor=4 --set parallel.sequence_parallel=true",
        "-n 4 --set parallel.tensor=2 --set parallel.sequence_parallel=true --set engine.zero_optimization.stage=3",
        "-n 8 --set parallel.pipe=2 --set parallel.tensor=2 --set engine.gradient_accumulation_steps=2 --set "
        "engine.zero_optimization.stage=1",
        "-n 3 --set parallel.pipe=3 --set parallel.schedule=gpipe --set engine.gradient_accumulation_steps=2 "
        "--set engine.pipeline.activation_checkpoint_interval=1"),
    [](const auto& info) {
      std::string name = info.param;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

} // namespace
} // namespace trireme::tools
