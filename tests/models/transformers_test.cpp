// Hugging Face's transformers itself opens what save_gpt2() wrote, and load_gpt2() what transformers wrote.
#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt2_weights.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <filesystem>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;
using test::run_command;
using testing::HasSubstr;

GptOptions three_layers(bool tied) {
  GptOptions options;
  options.layers = 3;
  options.hidden = 32;
  options.heads = 4;
  options.sequence_length = 12;
  options.vocab_size = 50;
  options.tie_embeddings = tied;
  options.dropout = 0.25;
  return options;
}

/// No value is what GPT-2 begins with: biases and norms too.
Gpt some_gpt(bool tied, at::ScalarType dtype) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  Gpt model(three_layers(tied));
  for (const auto& item : model->named_parameters()) {
    item.value().normal_(item.key().find("ln_") != std::string::npos && item.key().ends_with("weight") ? 1.0 : 0.0,
                         0.2);
  }
  model->to(dtype);
  model->eval();
  return model;
}

class TransformersTest : public testing::Test {
 protected:
  TransformersTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_transformers_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~TransformersTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// Python once for all of them: transformers takes seconds to import.
TEST_F(TransformersTest, OpensWhatWasSavedAndTheOtherWayRound) {
  struct Case {
    std::string name;
    bool tied;
    at::ScalarType dtype;
    std::string seen;
  };
  const int64_t shared = 50 * 32 + 12 * 32 + 3 * (12 * 32 * 32 + 13 * 32) + 2 * 32;
  const std::vector<Case> cases{
      {"tied", true, at::kFloat, concat("tied: tied, float32, parameters: ", shared)},
      {"untied", false, at::kFloat, concat("untied: untied, float32, parameters: ", shared + 50 * 32)},
      {"tied_bf16", true, at::kBFloat16, "tied_bf16: tied, bfloat16"},
      {"untied_bf16", false, at::kBFloat16, "untied_bf16: untied, bfloat16"}};
  std::string command =
      "\"" + test::python() + "\" \"" + test::source_dir() + "/tests/models/open_with_transformers.py\"";
  for (const Case& one : cases) {
    save_gpt2(some_gpt(one.tied, one.dtype), folder_ / one.name);
    command += concat(' ', (folder_ / one.name).string());
  }
  const auto [status, output] = run_command(command);
  ASSERT_EQ(status, 0) << output << "\n(./test installs transformers)";
  for (const Case& one : cases) {
    EXPECT_THAT(output, HasSubstr(one.seen));
    Gpt model = some_gpt(one.tied, one.dtype);
    model->to(at::kFloat); // the same values: what is computed in bf16 does not agree to 1e-5
    const auto theirs = checkpoint::Safetensors::open(folder_ / one.name / "seen.safetensors");
    const torch::NoGradGuard no_grad;
    EXPECT_LT((model->forward(theirs.tensor("tokens")) - theirs.tensor("logits")).abs().max().item<double>(), 1e-5)
        << one.name;
    // In several files with an index, as large models are.
    ASSERT_TRUE(fs::exists(folder_ / one.name / "again/model.safetensors.index.json")) << one.name;
    GptOptions from = three_layers(one.tied);
    from.init_from = folder_ / one.name / "again";
    const Gpt again(from);
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(again->named_parameters()[item.key()].equal(item.value())) << one.name << ' ' << item.key();
    }
  }
}

// A path that ends in .safetensors is a file, by itself.
TEST_F(TransformersTest, AFileHasTheSameWeights) {
  const Gpt model = some_gpt(true, at::kFloat);
  save_gpt2(model, folder_ / "saved");
  save_gpt2(model, folder_ / "alone/weights.safetensors");
  EXPECT_EQ(read_file(folder_ / "alone/weights.safetensors"), read_file(folder_ / "saved/model.safetensors"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "alone"), {}), 1);
}

} // namespace
} // namespace trireme::models
