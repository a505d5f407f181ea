#include <trireme/base/error.h>
#include <trireme/generate/load.h>
#include <trireme/generate/sample.h>
#include <trireme/models/gpt.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

namespace trireme::generate {
namespace {

models::Gpt small() {
  models::GptOptions options;
  options.layers = 1;
  options.hidden = 16;
  options.heads = 2;
  options.sequence_length = 6;
  options.vocab_size = 20;
  return models::Gpt(options);
}

SampleOptions greedy(int64_t tokens) {
  SampleOptions options;
  options.tokens = tokens;
  options.choice.temperature = 0;
  return options;
}

// Token by token with nothing but the model: the window slides once the text is longer than the model.
TEST(SampleTest, GreedyTextIsTheMostLikelyTokenEachTime) {
  models::Gpt model = small();
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> expected = {3, 1, 4};
  for (int i = 0; i < 10; ++i) {
    const size_t length = std::min<size_t>(6, expected.size());
    const at::Tensor window = torch::tensor(std::vector<int64_t>(expected.end() - length, expected.end())).unsqueeze(0);
    expected.push_back(model->forward(window)[0][length - 1].argmax().item<int64_t>());
  }
  const std::vector<int32_t> text = sample(model.ptr(), {3, 1, 4}, greedy(10));
  EXPECT_EQ(std::vector<int64_t>(text.begin(), text.end()), expected);
}

TEST(SampleTest, OnlyTokensOfTheTokenizerAreChosen) {
  models::Gpt model = small();
  SampleOptions options = greedy(1);
  options.vocab_size = 5;
  const torch::NoGradGuard no_grad;
  for (int32_t token = 0; token < 20; ++token) {
    const at::Tensor logits = model->forward(torch::full({1, 1}, token, torch::kInt64))[0][0];
    EXPECT_EQ(sample(model.ptr(), {token}, options).back(), logits.narrow(0, 0, 5).argmax().item<int32_t>());
  }
  options.choice.temperature = 1;
  options.choice.top_k = 10;
  options.tokens = 50;
  const std::vector<int32_t> text = sample(model.ptr(), {1}, options);
  EXPECT_LT(*std::ranges::max_element(text), 5);
}

TEST(SampleTest, TheSeedDecides) {
  models::Gpt model = small();
  SampleOptions options;
  options.tokens = 30;
  options.choice.temperature = 1;
  options.seed = 5;
  const auto first = sample(model.ptr(), {1}, options);
  EXPECT_EQ(sample(model.ptr(), {1}, options), first);
  options.seed = 6;
  EXPECT_NE(sample(model.ptr(), {1}, options), first);
}

TEST(SampleTest, AllBitsOfTheSeedCount) {
  models::Gpt model = small();
  SampleOptions options;
  options.tokens = 12;
  options.choice.temperature = 1;
  std::set<std::vector<int32_t>> texts;
  for (const int64_t seed : {int64_t{-1}, int64_t{0xffffffff}, std::numeric_limits<int64_t>::max(), int64_t{1} << 32}) {
    options.seed = seed;
    texts.insert(sample(model.ptr(), {1}, options));
  }
  options.seed = 0;
  texts.insert(sample(model.ptr(), {1}, options));
  EXPECT_EQ(texts.size(), 5u);
  options.seed = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(continue_prompts(model.ptr(), {{1}, {1}}, options).size(), 2u)
      << "the second has the next one, modulo 2^64";
}

TEST(SampleTest, TopOneIsGreedy) {
  models::Gpt model = small();
  SampleOptions options;
  options.tokens = 12;
  options.choice.temperature = 1;
  options.choice.top_k = 1;
  EXPECT_EQ(sample(model.ptr(), {7, 2}, options), sample(model.ptr(), {7, 2}, greedy(12)));
}

// Prompts of different lengths at once, beyond the model's positions too: each as if it were alone.
TEST(SampleTest, PromptsDoNotDependOnEachOther) {
  models::Gpt model = small();
  const std::vector<std::vector<int32_t>> prompts = {{3, 1, 4}, {7}, {2, 6, 5, 3, 5, 8, 9}, {}};
  for (const double temperature : {0.0, 1.2}) {
    SampleOptions options;
    options.tokens = 9;
    options.choice.temperature = temperature;
    options.seed = 8;
    const auto together = continue_prompts(model.ptr(), prompts, options);
    ASSERT_EQ(together.size(), 4u);
    for (size_t i = 0; i < prompts.size(); ++i) {
      SampleOptions alone = options;
      alone.seed += static_cast<int64_t>(i);
      EXPECT_EQ(together[i], continue_prompts(model.ptr(), {prompts[i]}, alone)[0]) << "prompt " << i;
    }
  }
}

TEST(SampleTest, ATextEndsWithAnEndTokenOrWhereItsReaderSays) {
  models::Gpt model = small();
  SampleOptions options;
  options.tokens = 5;
  options.choice.temperature = 1;
  const std::vector<std::vector<int32_t>> prompts = {{3, 1}, {4}, {9, 9, 1}};
  const auto whole = continue_prompts(model.ptr(), prompts, options);
  options.end_tokens = {whole[0][2]};
  const auto ended = continue_prompts(model.ptr(), prompts, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto end = std::ranges::find(whole[i], whole[0][2]);
    EXPECT_EQ(ended[i], std::vector<int32_t>(whole[i].begin(), end == whole[i].end() ? end : end + 1)) << i;
  }
  options.end_tokens.clear();
  std::vector<std::vector<int32_t>> seen(3);
  const auto cut = continue_prompts(model.ptr(), prompts, options, [&](size_t prompt, int32_t token) {
    seen[prompt].push_back(token);
    return prompt == 1 && seen[1].size() == 2;
  });
  EXPECT_EQ(cut[0], whole[0]);
  EXPECT_EQ(cut[1], (std::vector<int32_t>{whole[1][0], whole[1][1]}));
  EXPECT_EQ(seen, cut);
}

// Frozen parts may evaluate while the rest trains: each module is as it was, whatever the reader throws.
TEST(SampleTest, ModulesTrainAgainAfterTheReaderThrew) {
  models::Gpt model = small();
  torch::nn::Module& frozen = *model->modules(/*include_self=*/false).back();
  frozen.eval();
  const auto fail = [](size_t, int32_t) -> bool { throw std::runtime_error("the pipe is closed"); };
  EXPECT_THROW(continue_prompts(model.ptr(), {{1}}, greedy(3), fail), std::runtime_error);
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(frozen.is_training());
  continue_prompts(model.ptr(), {{1}}, greedy(3), [&](size_t, int32_t) { return model->is_training(); });
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(frozen.is_training());
}

TEST(SampleTest, RefusesTokensTheModelDoesNotKnow) {
  EXPECT_THROW(sample(small().ptr(), {20}, greedy(1)), InputError);
  EXPECT_THROW(sample(small().ptr(), {-1}, greedy(1)), InputError);
  EXPECT_EQ(sample(small().ptr(), {}, greedy(2)).size(), 3u);
}

TEST(LoadTest, AFolderWithoutACheckpointIsTheUsersInput) {
  EXPECT_THROW(load(testing::TempDir()), InputError);
}

} // namespace
} // namespace trireme::generate
