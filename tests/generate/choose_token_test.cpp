// What is left of the logits, against loops over their definition.
#include <trireme/base/error.h>
#include <trireme/generate/choose_token.h>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme::generate {
namespace {

at::Tensor some_logits() {
  torch::manual_seed(5);
  return torch::randn({30}) * 3;
}

std::vector<double> softmax(const at::Tensor& logits) {
  std::vector<double> p;
  for (int64_t i = 0; i < logits.size(0); ++i) {
    p.push_back(std::exp(logits[i].item<double>()));
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  std::ranges::for_each(p, [&](double& x) { x /= sum; });
  return p;
}

std::vector<bool> left(const at::Tensor& logits) {
  std::vector<bool> result;
  for (int64_t i = 0; i < logits.size(0); ++i) {
    result.push_back(std::isfinite(logits[i].item<double>()));
  }
  return result;
}

TEST(ChooseTokenTest, TopPKeepsTheFewestTokensThatReachIt) {
  for (const double share : {0.05, 0.3, 0.8, 0.95, 0.999}) {
    const at::Tensor logits = some_logits();
    const std::vector<double> p = softmax(logits);
    std::vector<size_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](size_t a, size_t b) { return p[a] > p[b]; });
    std::vector<bool> expected(p.size(), false);
    double sum = 0;
    for (size_t i = 0; i < order.size() && sum < share; ++i) {
      expected[order[i]] = true;
      sum += p[order[i]];
    }
    EXPECT_EQ(left(choice_logits(logits, {}, {.temperature = 1, .top_p = share})), expected) << share;
  }
}

TEST(ChooseTokenTest, MinPKeepsWhatIsLikelyBesideTheMostLikely) {
  const at::Tensor logits = some_logits();
  const std::vector<double> p = softmax(logits / 2);
  const double most = *std::ranges::max_element(p);
  std::vector<bool> expected;
  std::ranges::transform(p, std::back_inserter(expected), [&](double x) { return x >= 0.1 * most; });
  EXPECT_EQ(left(choice_logits(logits, {}, {.temperature = 2, .min_p = 0.1})), expected);
}

TEST(ChooseTokenTest, LimitsFollowEachOther) { // top-p among what top-k has left
  const at::Tensor logits = torch::tensor({std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)});
  const Choice choice = {.temperature = 1, .top_k = 2, .top_p = 0.5};
  EXPECT_EQ(left(choice_logits(logits, {}, choice)), (std::vector<bool>{true, false, false, false})) << "0.4 of 0.7";
}

TEST(ChooseTokenTest, RepetitionPenaltyCountsATokenOnce) {
  const at::Tensor logits = torch::tensor({2.0F, -2.0F, 3.0F});
  const std::vector<int32_t> text = {0, 1, 1, 0, 7};
  const at::Tensor found = choice_logits(logits, text, {.temperature = 0, .repetition_penalty = 4});
  EXPECT_TRUE(found.equal(torch::tensor({0.5F, -8.0F, 3.0F}))) << found;
  EXPECT_TRUE(logits.equal(torch::tensor({2.0F, -2.0F, 3.0F}))) << "the model's";
}

TEST(ChooseTokenTest, FrequenciesAreTheProbabilities) {
  const at::Tensor logits = torch::tensor({0.0F, 1.0F, -1.0F, 2.0F});
  const Choice choice = {.temperature = 1.5};
  const std::vector<double> p = softmax(logits / 1.5);
  at::Generator generator = at::detail::createCPUGenerator(3);
  std::vector<double> count(4);
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    ++count[static_cast<size_t>(choose_token(logits, {}, choice, generator))];
  }
  for (size_t i = 0; i < 4; ++i) { // five standard deviations
    EXPECT_NEAR(count[i] / kDraws, p[i], 5 * std::sqrt(p[i] * (1 - p[i]) / kDraws)) << i;
  }
}

TEST(ChooseTokenTest, TheSmallestTemperaturesTakeTheMostLikelyToken) {
  const at::Tensor logits = some_logits();
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (const double temperature : {0.0, 5e-324, 1e-45, 1e-38, 1e-37, 1e-30, 1e-20}) {
    EXPECT_EQ(choose_token(logits, {}, {.temperature = temperature}, generator), logits.argmax().item<int64_t>())
        << temperature;
  }
}

TEST(ChooseTokenTest, ValuesOutsideTheirRangeAreNamed) {
  const std::pair<const char*, Choice> wrong[] = {{"temperature", {.temperature = -1}},
                                                  {"temperature", {.temperature = NAN}},
                                                  {"top_k", {.top_k = -1}},
                                                  {"top_p", {.top_p = 0}},
                                                  {"top_p", {.top_p = 1.5}},
                                                  {"min_p", {.min_p = -0.1}},
                                                  {"repetition_penalty", {.repetition_penalty = 0}}};
  for (const auto& [name, choice] : wrong) {
    try {
      check(choice);
      ADD_FAILURE() << name;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(name));
    }
  }
}

} // namespace
} // namespace trireme::generate
