#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/bert_layers.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <cstdlib>
#include <filesystem>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;
using pipeline::PipelineModule;

// The shape of reference_bert.py.
BertOptions small() {
  BertOptions options;
  options.layers = 2;
  options.hidden = 16;
  options.heads = 4;
  options.intermediate = 40;
  options.sequence_length = 12;
  options.vocab_size = 50;
  return options;
}

std::shared_ptr<PipelineModule> built(const BertOptions& options) {
  auto model = std::make_shared<PipelineModule>(bert_layers(options), masked_lm_loss);
  model->build();
  return model;
}

// The reference forward pass is Python's; see reference_bert.py.
TEST(BertTest, LogitsEqualPytorchsOnTheSameWeights) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_bert_", ::getpid());
  fs::create_directories(folder);
  const std::string command =
      concat("\"" + test::python() + "\" \"" + test::source_dir() + "/tests/models/reference_bert.py\" logits \"",
             folder.string(), "\"");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto weights = checkpoint::Safetensors::open(folder / "model.safetensors");
  const auto expected = checkpoint::Safetensors::open(folder / "expected.safetensors");
  fs::remove_all(folder);

  const auto model = built(small());
  const torch::NoGradGuard no_grad;
  const auto parameters = model->named_parameters();
  ASSERT_EQ(parameters.size(), weights.tensors().size());
  for (const auto& item : parameters) {
    item.value().copy_(weights.tensor(item.key()));
  }
  const at::Tensor tokens = expected.tensor("tokens");
  const at::Tensor mask = expected.tensor("mask");
  const auto apart = [&](const pipeline::Tensors& inputs, const char* name) {
    const pipeline::Tensors outputs = model->forward(inputs);
    EXPECT_EQ(outputs.size(), 1u);
    return (outputs.at(0) - expected.tensor(name)).abs().max().item<double>();
  };
  EXPECT_LT(apart({tokens, mask}, "logits"), 5e-5);
  EXPECT_LT(apart({tokens, mask, expected.tensor("segments")}, "logits_of_segments"), 5e-5);
  EXPECT_GT(apart({tokens, torch::ones_like(mask)}, "logits"), 1e-2) << "the mask must matter";
}

TEST(BertTest, WhatIsInThePaddingDoesNotMatter) {
  const auto model = built(small());
  const torch::NoGradGuard no_grad;
  at::Tensor tokens = torch::arange(24).view({2, 12}) % 50;
  at::Tensor mask = torch::ones({2, 12}, torch::kBool);
  mask[1].slice(0, 7).fill_(false);
  const at::Tensor before = model->forward(pipeline::Tensors{tokens, mask}).at(0)[1].slice(0, 0, 7).clone();
  tokens[1].slice(0, 7).fill_(3);
  EXPECT_TRUE(model->forward(pipeline::Tensors{tokens, mask}).at(0)[1].slice(0, 0, 7).allclose(before, 1e-6, 1e-6));
}

TEST(BertTest, OnlyMaskedPositionsAreInTheLoss) {
  const at::Tensor logits = torch::randn({2, 3, 5});
  at::Tensor targets = torch::full({2, 3}, kIgnoredTarget, torch::kInt64);
  EXPECT_EQ(masked_lm_loss({logits}, {targets}).item<double>(), 0.0) << "nothing masked";
  targets[0][2] = 4;
  targets[1][0] = 1;
  const at::Tensor log_p = logits.log_softmax(-1);
  EXPECT_NEAR(masked_lm_loss({logits}, {targets}).item<double>(), -(log_p[0][2][4] + log_p[1][0][1]).item<double>() / 2,
              1e-6);
}

// ATen's own loss of such logits is rounded to their type, and so is the sum over the rows.
TEST(BertTest, TheLossOfHalfLogitsIsExact) {
  torch::manual_seed(3);
  const at::Tensor values = torch::randn({40, 100}) * 2 + 10, targets = torch::arange(40) * 7 % 100;
  for (const at::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
    const at::Tensor logits = values.to(type);
    const double expected = at::cross_entropy_loss(logits.to(torch::kDouble), targets).item<double>();
    EXPECT_NEAR(masked_lm_loss({logits}, {targets}).item<double>(), expected, 1e-5 * expected);
    EXPECT_NEAR(class_loss({logits}, {targets}).item<double>(), expected, 1e-5 * expected);
  }
}

TEST(BertTest, RefusesImpossibleShapes) {
  BertOptions options = small();
  options.heads = 3;
  EXPECT_THROW(bert_layers(options), InputError);
  const auto model = built(small());
  EXPECT_THROW(
      model->forward(pipeline::Tensors{torch::zeros({1, 13}, torch::kInt64), torch::ones({1, 13}, torch::kBool)}),
      InputError);
}

} // namespace
} // namespace trireme::models
