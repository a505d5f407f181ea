#include <trireme/precision/loss_scaler.h>
#include <trireme/precision/overflow_report.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

namespace trireme::precision {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(AllFiniteTest, FindsOneBadElementAnywhere) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t n : {1, 7, 64, 1000, 100'003}) {
      at::Tensor values = torch::randn({n}).to(type);
      EXPECT_TRUE(all_finite(values));
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        for (const double bad : {kNan, kInfinity, -kInfinity}) {
          const at::Tensor spoiled = values.clone();
          spoiled[at] = bad;
          EXPECT_FALSE(all_finite(spoiled)) << type << ' ' << n << ' ' << at << ' ' << bad;
        }
      }
    }
  }
}

TEST(AllFiniteTest, OtherShapesAndTypes) {
  EXPECT_TRUE(all_finite(at::Tensor()));
  EXPECT_TRUE(all_finite(torch::empty({0})));
  EXPECT_TRUE(all_finite(torch::arange(5)));
  at::Tensor grid = torch::zeros({6, 8});
  grid[3][5] = kNan;
  EXPECT_FALSE(all_finite(grid.t()));
  EXPECT_TRUE(all_finite(grid.narrow(1, 0, 5)));
  EXPECT_TRUE(all_finite(torch::full({4}, 3e38))) << "finite, although the sum is not";
  EXPECT_FALSE(all_finite(torch::full({1}, kInfinity, torch::requires_grad())));
}

TEST(OverflowReportTest, ListsTheFirstOfEachRank) {
  std::vector<NonFinite> all;
  for (const int rank : {0, 2}) {
    NamedTensors gradients = {{"a", torch::zeros({4})}, {"none", at::Tensor()}, {"b", torch::zeros({2, 3})}};
    EXPECT_THAT(find_non_finite(gradients, rank), IsEmpty());
    gradients[2].second[1][1] = kNan;
    gradients[2].second[0][0] = -kInfinity;
    gradients[2].second[0][1] = rank == 2 ? kNan : 0;
    const auto here = find_non_finite(gradients, rank);
    all.insert(all.end(), here.begin(), here.end());
  }
  EXPECT_EQ(describe_non_finite(all), "rank 0: b (1 NaN, 1 Inf of 6); rank 2: b (2 NaN, 1 Inf of 6)");
  const at::Tensor bad = torch::full({1}, kInfinity);
  EXPECT_EQ(find_non_finite({{"a", bad}, {"b", bad}, {"c", bad}}, 0, 2).size(), 2u);
  EXPECT_EQ(describe_non_finite({}), "");
}

// Three layers; `spoil` acts on the activation between the second and the third.
struct Model {
  std::vector<torch::nn::Linear> layers = {torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)};
  NamedTensors named() {
    NamedTensors out;
    for (size_t i = 0; i < layers.size(); ++i) {
      out.emplace_back(concat("layer", i, ".weight"), layers[i]->weight);
      out.emplace_back(concat("layer", i, ".bias"), layers[i]->bias);
    }
    out.emplace_back("tied", layers[0]->weight);
    return out;
  }
  at::Tensor loss(const std::function<void(at::Tensor&)>& spoil = nullptr) {
    at::Tensor x = layers[1]->forward(layers[0]->forward(torch::ones({2, 4})));
    if (spoil) {
      spoil(x);
    }
    return layers[2]->forward(x).sum();
  }
};

TEST(OverflowReportTest, TheWatchNamesRankAndLayerWhereItBegan) {
  on_ranks(3, [](comm::World& world) {
    Model model;
    OverflowWatch watch(model.named());
    const bool guilty = world.rank() == 1;
    model
        .loss([&](at::Tensor& x) {
          if (guilty) {
            x.register_hook([](const at::Tensor& grad) { return grad * kNan; });
          }
        })
        .backward();
    for (auto& [name, parameter] : model.named()) { // the reduction brings it to all
      world.group().all_reduce(parameter.mutable_grad()).wait();
    }
    const std::string text = watch.report(world.group());
    EXPECT_THAT(text, HasSubstr("not finite, in the order of backward: rank 1: layer1."));
    EXPECT_THAT(text, HasSubstr("layer1.weight (16 NaN of 16)"));
    EXPECT_THAT(text, HasSubstr("the backward of that layer made the NaN or Inf"));
    EXPECT_THAT(text, Not(HasSubstr("rank 0")));
    EXPECT_THAT(text, Not(HasSubstr("layer2")));
    EXPECT_EQ(watch.report(world.group()), "") << "it has been told";
  });
}

TEST(OverflowReportTest, TheWatchTellsABadLossFromBadWeights) {
  const comm::Group alone;
  Model model;
  {
    OverflowWatch watch(model.named());
    (model.loss() * kInfinity).backward();
    EXPECT_THAT(watch.report(alone),
                AllOf(HasSubstr("rank 0: layer2."), HasSubstr("All gradients of rank 0 are bad: forward or")));
    const torch::NoGradGuard no_grad;
    model.layers[1]->weight[0][0] = kNan;
    const torch::AutoGradMode grad(true);
    model.loss().backward();
    EXPECT_THAT(watch.report(alone),
                HasSubstr("Weights hold NaN or Inf already: rank 0: layer1.weight (1 NaN of 16)."));
  }
  model.loss().backward(); // the hooks are off: nothing is looked at, nothing crashes
}

TEST(OverflowReportTest, TheWatchOutlivesNothing) {
  auto watch = std::make_unique<OverflowWatch>(NamedTensors{});
  EXPECT_EQ(watch->report(comm::Group()), "");
  {
    Model model;
    watch = std::make_unique<OverflowWatch>(model.named());
    model.loss().backward();
  }
  EXPECT_EQ(watch->report(comm::Group()), "") << "the watch keeps the parameters it watches";
}

// What an engine does with the parts, against the same training without any scale: powers of two change no bit.
TEST(MixedStepTest, ScaledTrainingIsUnscaledTrainingBitForBit) {
  LossScaleOptions options;
  options.loss_scale_window = 1; // the scale doubles in almost every step, which is where G1 bites
  options.hysteresis = 1;
  LossScaler scaler(options);
  const at::Tensor x = torch::tensor({0.5f, -1.25f, 3.0f});
  at::Tensor plain = torch::ones({3}, torch::requires_grad());
  at::Tensor scaled = torch::ones({3}, torch::requires_grad());
  int skipped = 0;
  for (int step = 0; step < 30; ++step) {
    const bool spoil = step % 7 == 3;
    const auto gradient = [&](at::Tensor& weight, double scale) {
      weight.mutable_grad() = at::Tensor();
      ((weight * x).square().sum() * scale).backward();
      return weight.grad();
    };
    at::Tensor grad = gradient(scaled, scaler.scale());
    if (spoil) {
      grad[1] = kInfinity;
    }
    const LossScaler::Update update = scaler.update(!all_finite(grad));
    skipped += update.skipped;
    const torch::NoGradGuard no_grad;
    if (!update.skipped) {
      scaled.sub_(grad * static_cast<float>(0.03125 / update.used));
      const torch::AutoGradMode on(true);
      const at::Tensor exact = gradient(plain, 1);
      const torch::NoGradGuard off;
      plain.sub_(exact * 0.03125);
    }
    ASSERT_TRUE(plain.detach().equal(scaled.detach())) << "step " << step;
  }
  EXPECT_EQ(skipped, 4);
}

} // namespace
} // namespace trireme::precision
