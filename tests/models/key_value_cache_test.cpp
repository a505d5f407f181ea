// With a cache of keys and values a model gives the logits that it gives for the whole text.
#include <trireme/base/error.h>
#include <trireme/models/key_value_cache.h>
#include <trireme/models/language_model.h>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::models {
namespace {

using Texts = std::vector<std::vector<int64_t>>;

GptOptions cached_gpt() {
  GptOptions options;
  options.layers = 2;
  options.hidden = 24;
  options.heads = 3;
  options.sequence_length = 20;
  options.vocab_size = 40;
  options.dropout = 0.2; // not while it generates
  return options;
}

LlamaOptions cached_llama(int64_t kv_heads) {
  LlamaOptions options;
  options.layers = 3;
  options.hidden = 32;
  options.heads = 4;
  options.kv_heads = kv_heads;
  options.intermediate = 40;
  options.sequence_length = 20;
  options.vocab_size = 40;
  return options;
}

LlamaOptions cached_full_llama() {
  LlamaOptions options = cached_llama(2);
  options.head_dim = 6;
  options.attention_bias = options.attention_output_bias = options.mlp_bias = options.qk_norm = true;
  options.window = 5;
  options.first_window_layer = 1;
  options.tie_embeddings = false;
  options.rope_scaling.kind = RopeScaling::Kind::linear;
  options.rope_scaling.factor = 3;
  return options;
}

std::vector<std::pair<const char*, LanguageOptions>> all_options() {
  return {{"gpt", cached_gpt()},
          {"llama", cached_llama(0)},
          {"grouped queries", cached_llama(2)},
          {"one head", cached_llama(1)},
          {"all it may have", cached_full_llama()}};
}

at::Tensor padded(const Texts& texts) {
  size_t longest = 0;
  for (const auto& text : texts) {
    longest = std::max(longest, text.size());
  }
  at::Tensor tokens = at::zeros({static_cast<int64_t>(texts.size()), static_cast<int64_t>(longest)}, at::kLong);
  for (size_t i = 0; i < texts.size(); ++i) {
    tokens[static_cast<int64_t>(i)].narrow(0, 0, static_cast<int64_t>(texts[i].size())).copy_(torch::tensor(texts[i]));
  }
  return tokens;
}

std::vector<int64_t> lengths_of(const Texts& texts) {
  std::vector<int64_t> lengths;
  for (const auto& text : texts) {
    lengths.push_back(static_cast<int64_t>(text.size()));
  }
  return lengths;
}

void expect_logits(const LanguageModel& model, const at::Tensor& logits, const Texts& texts, double bound) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const at::Tensor whole = model.forward(torch::tensor(texts[i]).unsqueeze(0))[0][-1].to(at::kFloat);
    const at::Tensor found = logits[static_cast<int64_t>(i)].to(at::kFloat);
    EXPECT_LT((found - whole).abs().max().item<double>(), bound * whole.abs().max().item<double>()) << "text " << i;
  }
}

struct CacheCase {
  at::ScalarType type;
  bool inference; ///< c10::InferenceMode, where kernels of ours read the cache
};

class KeyValueCacheTest : public testing::TestWithParam<CacheCase> {};

TEST_P(KeyValueCacheTest, GivesTheLogitsOfTheWholeText) {
  const torch::NoGradGuard no_grad;
  const auto [type, in_inference] = GetParam();
  const double bound = type == at::kFloat ? 1e-5 : 3e-2; // bf16: each layer rounds
  for (const auto& [name, options] : all_options()) {
    SCOPED_TRACE(name);
    torch::manual_seed(3);
    const LanguageModel model(options);
    model.module()->eval();
    for (at::Tensor& parameter : model.module()->parameters()) { // initial values are small, and biases are 0
      parameter.add_(torch::randn_like(parameter), 0.05);
    }
    model.module()->to(type);
    const c10::InferenceMode inference(in_inference);
    Texts texts = {{3, 1, 4}, {7}, {1, 5, 9, 2, 6, 5, 3, 5, 8}, {2, 7}};
    KeyValueCache cache(4, 16);
    cache.begin(lengths_of(texts));
    expect_logits(model, model.extend(padded(texts), cache), texts, bound);
    for (int64_t i = 0; i < 7; ++i) {
      Texts last;
      for (size_t row = 0; row < texts.size(); ++row) {
        texts[row].push_back((i * 11 + static_cast<int64_t>(row) * 5 + 2) % 40);
        last.push_back({texts[row].back()});
      }
      cache.next();
      SCOPED_TRACE(i);
      expect_logits(model, model.extend(padded(last), cache), texts, bound);
    }
    EXPECT_EQ(cache.lengths(), lengths_of(texts));
    EXPECT_THROW(cache.next(), InputError) << "the third text has 16 tokens";
    texts = {{1}, {2, 3}, {4}, {5}};
    cache.begin(lengths_of(texts)); // the same memory again
    expect_logits(model, model.extend(padded(texts), cache), texts, bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KeyValueCacheTest,
                         testing::Values(CacheCase{at::kFloat, false}, CacheCase{at::kFloat, true},
                                         CacheCase{at::kBFloat16, true}));

TEST(KeyValueCacheErrors, LengthsThatDoNotFitAreRefused) {
  KeyValueCache cache(2, 4);
  EXPECT_THROW(cache.begin({1}), InputError);
  EXPECT_THROW(cache.begin({1, 0}), InputError);
  EXPECT_THROW(cache.begin({1, 5}), InputError);
}

} // namespace
} // namespace trireme::models
