// The loss of a model as a list of layers: the model's, without the memory of all logits.
#include <tests/support/peak_bytes.h>
#include <trireme/base/error.h>
#include <trireme/fused/logit_chunks.h>
#include <trireme/models/language_model.h>
#include <trireme/parallel/pipeline/module.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::models {
namespace {

constexpr int64_t kTokens = 2048, kManyClasses = 40'000, kFloatBytes = 4;

GptOptions wide_gpt(bool ties) {
  GptOptions options;
  options.layers = 1;
  options.hidden = 8;
  options.heads = 1;
  options.sequence_length = kTokens;
  options.vocab_size = kManyClasses;
  options.tie_embeddings = ties;
  return options;
}

LlamaOptions wide_llama(bool ties) {
  LlamaOptions options;
  options.layers = 1;
  options.hidden = 8;
  options.heads = options.kv_heads = 1;
  options.intermediate = 8;
  options.sequence_length = kTokens;
  options.vocab_size = kManyClasses;
  options.tie_embeddings = ties;
  return options;
}

class LayersLossTest : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  LanguageOptions options_ = std::get<0>(GetParam()) ? LanguageOptions(wide_llama(std::get<1>(GetParam())))
                                                     : LanguageOptions(wide_gpt(std::get<1>(GetParam())));
};

TEST_P(LayersLossTest, IsTheModelsWithoutAllLogits) {
  static_assert(kTokens * kManyClasses * kFloatBytes > fused::kLogitChunkBytes);
  const at::Tensor tokens = torch::randint(kManyClasses, {1, kTokens}), targets = tokens.roll(-1, 1);
  torch::manual_seed(1);
  const LanguageModel model(options_, ModelRanks());
  const at::Tensor expected = model.loss(tokens, targets);
  expected.backward();
  torch::manual_seed(1);
  pipeline::PipelineModule layers(language_layers(options_), language_loss(options_, ModelRanks()));
  layers.build();
  const int64_t peak = test::peak_of([&] {
    const at::Tensor loss = layers.forward_to_loss(0, {tokens}, 0, {targets});
    loss.backward();
    EXPECT_TRUE(loss.equal(expected));
  });
  EXPECT_GE(peak, fused::kLogitChunkBytes / 2);
  EXPECT_LT(peak, fused::kLogitChunkBytes);
  const auto found = layers.named_parameters();
  for (const auto& parameter : model.module()->named_parameters()) {
    EXPECT_TRUE(found[parameter.key()].grad().equal(parameter.value().grad())) << parameter.key();
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayersLossTest, testing::Combine(testing::Bool(), testing::Bool()), [](const auto& info) {
  return concat(std::get<0>(info.param) ? "llama" : "gpt", std::get<1>(info.param) ? "_tied" : "_untied");
});

} // namespace
} // namespace trireme::models
