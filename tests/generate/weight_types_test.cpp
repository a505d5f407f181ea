// Text by a model whose weights are int8.
#include <trireme/fused/int8.h>
#include <trireme/generate/sample.h>
#include <trireme/generate/weight_types.h>
#include <trireme/models/gpt.h>
#include <trireme/models/llama.h>

#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <string_view>

namespace trireme::generate {
namespace {

constexpr std::string_view kText =
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
    "truth is so well fixed in the minds of the surrounding families, that he is considered the rightful property of "
    "some one or other of their daughters. ";

constexpr int64_t kLength = 32;

models::LanguageOptions small_llama(bool ties) {
  models::LlamaOptions options;
  options.layers = 2;
  options.hidden = 96; // a group of 64 weights, and a part of one
  options.heads = 4;
  options.kv_heads = 2;
  options.sequence_length = kLength;
  options.vocab_size = 128;
  options.tie_embeddings = ties;
  return options;
}

models::LanguageOptions small_gpt() {
  models::GptOptions options;
  options.layers = 1;
  options.hidden = 48;
  options.heads = 3;
  options.sequence_length = kLength;
  options.vocab_size = 128;
  return options;
}

/// Samples of the text at each `step` letters: inputs and targets.
std::pair<at::Tensor, at::Tensor> samples(int64_t step) {
  const std::vector<int64_t> letters(kText.begin(), kText.end());
  const at::Tensor windows = torch::tensor(letters).unfold(0, kLength + 1, step);
  return {windows.narrow(1, 0, kLength).contiguous(), windows.narrow(1, 1, kLength).contiguous()};
}

models::LanguageModel trained(const models::LanguageOptions& options) {
  torch::manual_seed(1);
  models::LanguageModel model(options);
  torch::optim::AdamW optimizer(model.module()->parameters(), torch::optim::AdamWOptions(4e-3));
  const auto [inputs, targets] = samples(19);
  for (int step = 0; step < 80; ++step) {
    optimizer.zero_grad();
    model.loss(inputs, targets).backward();
    optimizer.step();
  }
  model.module()->eval();
  return model;
}

/// A model of the same values, converted.
models::LanguageModel converted(const models::LanguageModel& model, at::ScalarType type, WeightType weights) {
  models::LanguageModel copy(model.options());
  const torch::NoGradGuard no_grad;
  for (const auto& item : model.module()->named_parameters()) {
    copy.module()->named_parameters()[item.key()].copy_(item.value());
  }
  copy.module()->eval();
  convert_weights(copy, type, weights);
  return copy;
}

double loss_of(const models::LanguageModel& model) {
  const torch::NoGradGuard no_grad;
  const auto [inputs, targets] = samples(19);
  return model.loss(inputs, targets).item<double>();
}

std::vector<int32_t> greedy_text(const models::LanguageModel& model) {
  SampleOptions options;
  options.tokens = kLength + 10; // beyond the model's positions too
  options.choice.temperature = 0;
  return continue_prompts(model, {{'I', 't', ' ', 'i', 's'}, {'H', 'o', 'w'}}, options)[1];
}

class WeightTypesTest : public testing::Test {
 protected:
  WeightTypesTest() { at::set_num_threads(1); } // small tensors
};

TEST_F(WeightTypesTest, Int8LosesAHundredthOfANatAtMost) {
  for (const models::LanguageOptions& options : {small_llama(true), small_gpt()}) {
    const models::LanguageModel model = trained(options);
    const models::LanguageModel int8 = converted(model, at::kFloat, WeightType::int8);
    const double loss = loss_of(model), of_int8 = loss_of(int8);
    EXPECT_LT(loss, 2) << "an untrained model has 4.9, and loses nothing";
    EXPECT_NE(loss, of_int8);
    EXPECT_NEAR(of_int8, loss, 0.01);
  }
}

models::LanguageModel untrained(const models::LanguageOptions& options) {
  torch::manual_seed(1);
  models::LanguageModel model(options);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.module()->parameters()) { // initial values are small, and biases are 0
    parameter.add_(torch::randn_like(parameter), 0.1);
  }
  return model;
}

TEST_F(WeightTypesTest, Int8TextIsThatOfTheUnpackedWeights) {
  for (const models::LanguageOptions& options : {small_llama(true), small_llama(false), small_gpt()}) {
    const models::LanguageModel model = untrained(options);
    const models::LanguageModel int8 = converted(model, at::kFloat, WeightType::int8);
    const models::LanguageModel unpacked = converted(model, at::kFloat, WeightType::same);
    int packed = 0;
    for (const auto& item : int8.module()->named_parameters()) {
      EXPECT_FALSE(item.value().requires_grad());
      if (fused::is_int8(item.value())) {
        ++packed;
        at::Tensor values = unpacked.module()->named_parameters()[item.key()];
        values.set_data(fused::unpack_int8(item.value(), at::kFloat));
      } else {
        EXPECT_TRUE(item.value().dim() == 1 || item.key() == "transformer.wpe.weight") << item.key();
      }
    }
    EXPECT_GT(packed, 4);
    EXPECT_EQ(greedy_text(int8), greedy_text(unpacked));
  }
}

TEST_F(WeightTypesTest, TheRestIsBf16IfWanted) {
  for (const models::LanguageOptions& options : {small_llama(true), small_gpt()}) {
    const models::LanguageModel model = untrained(options);
    const models::LanguageModel bf16 = converted(model, at::kBFloat16, WeightType::int8);
    int packed = 0;
    for (const auto& item : bf16.module()->named_parameters()) {
      const bool is_packed = fused::is_int8(item.value());
      EXPECT_TRUE(is_packed || item.value().scalar_type() == at::kBFloat16) << item.key();
      packed += is_packed ? 1 : 0;
    }
    EXPECT_GT(packed, 3);
    EXPECT_EQ(greedy_text(bf16)[0], greedy_text(model)[0])
        << "further texts part where two tokens are nearly as likely";
  }
}

} // namespace
} // namespace trireme::generate
