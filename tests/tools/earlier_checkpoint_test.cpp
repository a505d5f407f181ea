// Checkpoints of an earlier version (earlier_checkpoints/README.md) go on as that version went on.
#include "shell.h"

#include <tests/support/folders.h>
#include <trireme/base/text.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

class EarlierCheckpointTest : public RunFolder {
 protected:
  // Losses of steps 5 to 8.
  std::vector<double> go_on(const std::string& name, const std::string& options) const {
    const fs::path saved = kSaved / name;
    fs::copy_file(saved / "run.json", folder / "earlier.json", fs::copy_options::overwrite_existing);
    fs::remove_all(folder / "out");
    const Finished run = sh(concat(kTrireme, " train ", path("earlier.json"), " --out ", path("out"), " --resume \"",
                                   (saved / "global_step4").string(), "\" ", options));
    EXPECT_EQ(run.status, 0) << run.output;
    std::vector<double> losses;
    for (const std::string& line : split(read_file(folder / "out" / "metrics.jsonl"), '\n')) {
      if (!line.empty()) {
        losses.push_back(nlohmann::json::parse(line).at("loss"));
      }
    }
    return losses;
  }
  static std::vector<double> losses_of(const std::string& name) {
    return nlohmann::json::parse(read_file(kSaved / name / "losses.json"));
  }
  void expect_losses(const std::string& name, const std::string& options, double relative) const {
    const std::vector<double> expected = losses_of(name);
    const std::vector<double> found = go_on(name, options);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], relative * expected[i]) << name << ' ' << options << ", step " << 5 + i;
    }
  }

  inline static const fs::path kSaved = fs::path(test::source_dir()) / "tests/tools/earlier_checkpoints";
};

TEST_F(EarlierCheckpointTest, GoesOnInTheSameLayout) {
  for (const char* name : {"zero1_bf16", "zero3", "pipeline"}) {
    expect_losses(name, "-n 2", 1e-5); // another processor may round a matrix product in another way
  }
}

TEST_F(EarlierCheckpointTest, GoesOnInAnotherLayout) {
  expect_losses("zero3", "-n 1 --set engine.zero_optimization.stage=0", 1e-4);
  expect_losses("pipeline", "-n 1 --set parallel.pipe=1", 1e-4);
  expect_losses("zero1_bf16", "-n 2 --set engine.zero_optimization.stage=3", 1e-3);
}

} // namespace
} // namespace trireme::tools
