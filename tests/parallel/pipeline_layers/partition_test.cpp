#include <trireme/parallel/pipeline/partition.h>

#include <trireme/base/error.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "refusal.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

namespace trireme::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Score {
  double maximum;
  double spread;
  std::vector<int64_t> bounds;

  bool operator<(const Score& other) const {
    return std::tie(maximum, spread, bounds) < std::tie(other.maximum, other.spread, other.bounds);
  }
};

Score score(const std::vector<double>& costs, const std::vector<int64_t>& bounds) {
  double most = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t part = 0; part + 1 < bounds.size(); ++part) {
    const double sum = std::accumulate(costs.begin() + bounds[part], costs.begin() + bounds[part + 1], 0.0);
    most = std::max(most, sum);
    least = std::min(least, sum);
  }
  return {most, most - least, bounds};
}

// Tries every way to cut.
void search(const std::vector<double>& costs, int64_t parts, std::vector<int64_t>& bounds, std::optional<Score>& best) {
  const auto count = static_cast<int64_t>(costs.size());
  if (static_cast<int64_t>(bounds.size()) == parts) {
    bounds.push_back(count);
    const Score now = score(costs, bounds);
    best = !best || now < *best ? now : *best;
    bounds.pop_back();
    return;
  }
  for (int64_t next = bounds.back() + 1; next < count; ++next) {
    bounds.push_back(next);
    search(costs, parts, bounds, best);
    bounds.pop_back();
  }
}

TEST(BalanceTest, EqualsTheBestOfAllWays) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t count = 1 + random() % 9;
    const int64_t parts = 1 + random() % std::min<int64_t>(count, 5);
    std::vector<double> costs;
    for (int64_t i = 0; i < count; ++i) {
      costs.push_back(static_cast<double>(random() % (trial % 2 == 0 ? 10 : 1'000'000'000)) / 4);
    }
    std::vector<int64_t> bounds = {0};
    std::optional<Score> best;
    search(costs, parts, bounds, best);
    ASSERT_EQ(balance(costs, parts), best->bounds) << "trial " << trial;
  }
}

// A partition that minimises the spread alone has a maximum of 11 here.
TEST(BalanceTest, MinimisesTheMaximumFirst) {
  const std::vector<double> costs = {2, 9, 2, 2, 5, 0, 5, 0};
  EXPECT_EQ(score(costs, balance(costs, 4)).maximum, 9);
}

TEST(BalanceTest, RoundingDoesNotDecide) {
  EXPECT_THAT(balance({0.1, 0.1, 0.1}, 2), ElementsAre(0, 1, 3));
  EXPECT_THAT(balance(std::vector<double>(8, 0.1), 4), ElementsAre(0, 2, 4, 6, 8));
}

TEST(BalanceTest, NothingToBalanceStillFillsEveryPart) {
  EXPECT_THAT(balance({0, 0, 0, 0}, 2), ElementsAre(0, 1, 4));
  EXPECT_THAT(balance({5, 0, 0}, 3), ElementsAre(0, 1, 2, 3));
}

TEST(BalanceTest, ManyLayersAreQuick) {
  std::vector<double> costs;
  for (int i = 0; i < 1000; ++i) {
    costs.push_back(i % 17);
  }
  EXPECT_EQ(balance(costs, 64).back(), 1000);
}

TEST(UniformTest, TheFirstPartsHaveOneMore) {
  EXPECT_THAT(uniform(10, 4), ElementsAre(0, 3, 6, 8, 10));
  EXPECT_THAT(uniform(2, 4, true), ElementsAre(0, 1, 2, 2, 2));
  EXPECT_THAT(balance({3, 4}, 3, true), ElementsAre(0, 1, 2, 2));
}

TEST(PartitionErrorTest, SayWhatIsWrong) {
  EXPECT_THAT(refusal([] { balance({1, 2}, 3); }), HasSubstr("2 layers cannot fill 3 stages. Use fewer"));
  EXPECT_THAT(refusal([] { uniform(2, 0); }), HasSubstr("into 0 parts"));
  EXPECT_THAT(refusal([] { balance({1, -2}, 1); }), HasSubstr("layer 1 costs -2"));
  EXPECT_THAT(refusal([] { balance({1, std::nan("")}, 1); }), HasSubstr("layer 1 costs nan"));
  EXPECT_THAT(refusal([] { manual({0, 5}, 5, 2); }),
              HasSubstr("partition [0, 5] of 5 layers into 2: it has 2 numbers, not 3"));
  EXPECT_THAT(refusal([] { manual({1, 2, 5}, 5, 2); }), HasSubstr("begins with 1, not 0"));
  EXPECT_THAT(refusal([] { manual({0, 3, 3, 5}, 5, 3); }), HasSubstr("does not increase: 3 is followed by 3"));
  EXPECT_THAT(refusal([] { manual({0, 4, 2, 5}, 5, 3, true); }), HasSubstr("4 is followed by 2"));
  EXPECT_THAT(refusal([] { manual({0, 2, 4}, 5, 2); }), HasSubstr("ends with 4, not 5"));
  EXPECT_THAT(manual({0, 2, 2, 5}, 5, 3, true), ElementsAre(0, 2, 2, 5));
}

LayerList mixed() {
  return {torch::nn::Linear(4, 8), torch::nn::ReLU(), LayerSpec<torch::nn::Linear>(8, 100),
          [](const at::Tensor& x) { return x * 2; }, LayerSpec<torch::nn::Linear>(100, 2).name("head")};
}

TEST(MakePartitionTest, ByParametersTypeAndHand) {
  const Partition parameters = make_partition(mixed(), "parameters", {}, 2);
  EXPECT_THAT(parameters.costs, ElementsAre(40, 0, 900, 0, 202));
  EXPECT_THAT(parameters.bounds, ElementsAre(0, 3, 5));
  EXPECT_THAT(make_partition(mixed(), "uniform", {}, 2).bounds, ElementsAre(0, 3, 5));
  EXPECT_THAT(make_partition(mixed(), "type:LIN", {}, 3).bounds, ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(make_partition(mixed(), "type:^function$", {}, 2).costs, ElementsAre(0, 0, 0, 1, 0));
  EXPECT_THAT(make_partition(mixed(), "parameters", {0, 1, 5}, 2).bounds, ElementsAre(0, 1, 5));
  EXPECT_THAT(make_partition(mixed(), "type:\\Dinear", {}, 3).bounds, ElementsAre(0, 1, 3, 5))
      << "the expression itself is not lower-cased";
}

TEST(MakePartitionTest, Errors) {
  EXPECT_THAT(refusal([] { make_partition(mixed(), "type:Conv", {}, 2); }),
              HasSubstr("partition \"type:Conv\" matches no layer. Their types are: Linear, ReLU, function."));
  EXPECT_THAT(refusal([] { make_partition(mixed(), "type:(", {}, 2); }), HasSubstr("the regular expression is wrong"));
  EXPECT_THAT(refusal([] { make_partition(mixed(), "paramters", {}, 2); }), HasSubstr("Did you mean \"parameters\"?"));
}

TEST(DescribeTest, ShowsEveryLayerAndTheSums) {
  EXPECT_EQ(describe(make_partition(mixed(), "parameters", {}, 2), mixed()),
            "layer   type      stage  parameters  cost\n"
            "0       Linear        0          40    40\n"
            "1       ReLU          0           0     0\n"
            "2       Linear        0         900   900\n"
            "3       function      1           0     0\n"
            "4 head  Linear        1         202   202\n"
            "\n"
            "stage  layers  parameters  cost\n"
            "0      0 to 2         940   940\n"
            "1      3 to 4         202   202\n");
  const std::string chunked = describe(make_partition(mixed(), "uniform", {}, 4), mixed(), 2);
  EXPECT_THAT(chunked, HasSubstr("0      0 to 1          40     2\n1      2              900     1\n0      3"));
}

} // namespace
} // namespace trireme::pipeline
