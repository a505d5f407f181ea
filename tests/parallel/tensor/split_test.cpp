#include <tests/parallel/tensor/ordinary_models.h>
#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>
#include <trireme/memory/recompute/recompute.h>
#include <trireme/parallel/tensor/split.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <memory>

namespace trireme::tensor {
namespace {

using Kind = SplitRule::Kind;
using test::on_ranks;
using test::run_ranks;

constexpr int64_t kWidth = 24;
constexpr int64_t kHeadWidth = 6; // four heads
constexpr int64_t kVocabulary = 37;

const std::vector<SplitRule> kMlpRules = {{Kind::column, ".*fc1"}, {Kind::row, ".*fc2"}};

std::vector<SplitRule> block_rules() {
  return {{Kind::column, ".*attention\\.(query|key|value)$", kHeadWidth},
          {Kind::row, ".*attention\\.out$", kHeadWidth},
          {Kind::column, ".*fc1"},
          {Kind::row, ".*fc2"}};
}

std::vector<SplitRule> tied_rules() {
  std::vector<SplitRule> out = block_rules();
  out.push_back({Kind::vocabulary, "wte"});
  return out;
}

template <typename Model>
struct Pair {
  Model whole{nullptr};
  Model split{nullptr};
  std::unique_ptr<SplitModel> rules;
};

// Two models with the same values. On other ranks than 0 the one to split has other values at first.
template <typename Make>
auto make_pair(const comm::Group& ranks, const std::vector<SplitRule>& rules, at::ScalarType type, const Make& make) {
  Pair<decltype(make())> out;
  at::manual_seed(1);
  out.whole = make();
  at::manual_seed(1 + ranks.rank());
  out.split = make();
  out.whole->to(type);
  out.split->to(type);
  out.rules = std::make_unique<SplitModel>(SplitModel::split(*out.split, rules, ranks));
  at::manual_seed(2);
  return out;
}

test::Block block() {
  return test::Block(kWidth, kHeadWidth);
}

test::TiedModel tied() {
  return test::TiedModel(kVocabulary, kWidth, kHeadWidth, 3);
}

// This rank's part of a tensor that belongs to the whole parameter.
at::Tensor part_of_split(const SplitModel& split, const std::string& name, const at::Tensor& whole,
                         at::IntArrayRef sizes) {
  const std::optional<bucket::Placement> placement = split.placement_of(name);
  return placement ? box_of(whole, *placement, sizes) : whole;
}

void expect_split_close(const at::Tensor& a, const at::Tensor& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double scale = b.abs().max().item<double>() + 0.1; // the gradient of a bias of keys is zero but for rounding
  EXPECT_LE((a - b).abs().max().item<double>(), tolerance * scale) << what;
}

template <typename Model>
void expect_same_parameters(const Pair<Model>& pair, double tolerance, bool gradients) {
  const torch::NoGradGuard no_grad;
  const auto whole = pair.whole->named_parameters();
  int64_t split = 0;
  for (const auto& parameter : pair.split->named_parameters()) {
    const auto values = [&](const at::Tensor& p) { return gradients ? p.grad() : p; };
    ASSERT_TRUE(values(parameter.value()).defined()) << parameter.key();
    const at::Tensor mine =
        at::zeros_like(values(parameter.value())).copy_(values(parameter.value())); // without a mark
    const at::Tensor theirs = values(whole[parameter.key()]).detach();
    split += mine.numel() < theirs.numel() ? 1 : 0;
    expect_split_close(mine, part_of_split(*pair.rules, parameter.key(), theirs, mine.sizes()), tolerance,
                       parameter.key());
  }
  EXPECT_GT(split, 1);
}

template <typename Model>
void expect_split_equal(const Pair<Model>& pair, const at::Tensor& x, double tolerance = 1e-11) {
  const auto run = [&](Model& model) {
    at::Tensor input = x.is_floating_point() ? x.clone().requires_grad_() : x;
    const at::Tensor y = model->forward(input);
    y.pow(2).mul(at::arange(y.numel(), y.options()).view_as(y).cos()).sum().backward();
    return std::pair{y.detach(), x.is_floating_point() ? input.grad() : at::zeros({1})};
  };
  Model whole = pair.whole;
  Model split = pair.split;
  const auto [y, dx] = run(split);
  const auto [y_whole, dx_whole] = run(whole);
  expect_split_close(y, y_whole, tolerance, "output");
  expect_split_close(dx, dx_whole, tolerance, "gradient of the input");
  expect_same_parameters(pair, tolerance, true);
  pair.rules->check_gradients();
}

at::Tensor ids(int64_t batch, int64_t length) {
  return at::arange(batch * length).mul(7).remainder(kVocabulary).view({batch, length});
}

class OrdinaryModelTest : public testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  void on_ranks(const std::function<void(const comm::Group&)>& body) {
    test::on_ranks(std::get<0>(GetParam()),
                   [&](comm::World& world) {
                     at::set_num_threads(1);
                     body(world.group());
                   },
                   {.backend = std::get<1>(GetParam())});
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, OrdinaryModelTest,
                         testing::Combine(testing::Values(2, 3, 4), testing::Values("shm", "gloo")),
                         [](const auto& info) { return concat(std::get<1>(info.param), std::get<0>(info.param)); });

TEST_P(OrdinaryModelTest, MlpEqualsTheWhole) {
  on_ranks([](const comm::Group& ranks) {
    for (const bool bias : {true, false}) {
      auto pair = make_pair(ranks, kMlpRules, at::kDouble, [&] { return test::Mlp(16, 25, bias); });
      expect_split_equal(pair, at::randn({5, 16}, at::kDouble)); // addmm
      pair.split->zero_grad();
      pair.whole->zero_grad();
      expect_split_equal(pair, at::randn({2, 3, 16}, at::kDouble)); // matmul
    }
  });
}

TEST_P(OrdinaryModelTest, BlockEqualsTheWhole) {
  on_ranks([](const comm::Group& ranks) {
    auto pair = make_pair(ranks, block_rules(), at::kDouble, block);
    expect_split_equal(pair, at::randn({2, 5, kWidth}, at::kDouble));
  });
}

TEST_P(OrdinaryModelTest, OneProjectionForQueriesKeysAndValuesEqualsTheWhole) {
  on_ranks([](const comm::Group& ranks) {
    const std::vector<SplitRule> rules = {{Kind::column, "qkv", kHeadWidth, 3}, {Kind::row, "out", kHeadWidth}};
    auto pair = make_pair(ranks, rules, at::kDouble, [] { return test::FusedAttention(kWidth, kHeadWidth); });
    expect_split_equal(pair, at::randn({2, 5, kWidth}, at::kDouble));
  });
}

TEST_P(OrdinaryModelTest, TiedHeadEqualsTheWhole) {
  on_ranks([](const comm::Group& ranks) {
    for (const int64_t padding : {3, 36}) { // on the first rank and on the last
      auto pair = make_pair(ranks, tied_rules(), at::kDouble,
                            [&] { return test::TiedModel(kVocabulary, kWidth, kHeadWidth, padding); });
      expect_split_equal(pair, ids(2, 20));
    }
  });
}

TEST_P(OrdinaryModelTest, SequentialEqualsTheWhole) {
  on_ranks([](const comm::Group& ranks) {
    using torch::nn::Linear;
    const auto make = [] {
      return torch::nn::Sequential(Linear(8, 13), torch::nn::Tanh(), Linear(13, 6), Linear(6, 11));
    };
    auto pair =
        make_pair(ranks, {{Kind::column, "0$"}, {Kind::row, "2$"}, {Kind::column_gathered, "3$"}}, at::kDouble, make);
    expect_split_equal(pair, at::randn({4, 8}, at::kDouble));
    pair.split->zero_grad();
    pair.whole->zero_grad();
    expect_split_equal(pair, at::randn({2, 4, 8}, at::kDouble));
  });
}

TEST_P(OrdinaryModelTest, TenStepsOfPlainOptimizersEqualTheWhole) {
  on_ranks([](const comm::Group& ranks) {
    for (const bool adam : {true, false}) {
      auto pair = make_pair(ranks, tied_rules(), at::kDouble, tied);
      const auto optimizer = [&](test::TiedModel& model) -> std::unique_ptr<torch::optim::Optimizer> {
        if (adam) {
          return std::make_unique<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(1e-2));
        }
        return std::make_unique<torch::optim::SGD>(model->parameters(),
                                                   torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
      };
      const auto whole = optimizer(pair.whole);
      const auto split = optimizer(pair.split);
      const at::Tensor x = ids(3, 12);
      for (int step = 0; step < 10; ++step) {
        const auto loss = [&](test::TiedModel& model, torch::optim::Optimizer& o) {
          o.zero_grad();
          const at::Tensor out =
              torch::nn::functional::cross_entropy(model->forward(x).flatten(0, 1), x.roll(1, 1).flatten());
          out.backward();
          return out.item<double>();
        };
        EXPECT_NEAR(loss(pair.split, *split), loss(pair.whole, *whole), 1e-10) << step;
        EXPECT_NEAR(pair.rules->clip_grad_norm(0.5), torch::nn::utils::clip_grad_norm_(pair.whole->parameters(), 0.5),
                    1e-8)
            << step;
        split->step();
        whole->step();
      }
      expect_same_parameters(pair, 1e-7, false);
    }
  });
}

TEST_P(OrdinaryModelTest, BoxesMakeUpTheWholeModel) {
  on_ranks([](const comm::Group& ranks) {
    auto pair = make_pair(ranks, tied_rules(), at::kFloat, tied);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : pair.split->named_parameters()) {
      const std::optional<bucket::Placement> placement = pair.rules->placement_of(parameter.key());
      const at::Tensor whole = pair.whole->named_parameters()[parameter.key()].detach();
      if (!placement) {
        EXPECT_TRUE(at::equal(parameter.value(), whole)) << parameter.key();
        continue;
      }
      EXPECT_EQ(placement->global_shape, whole.sizes().vec());
      at::Tensor joined = at::zeros_like(whole);
      at::Tensor covered = at::zeros_like(whole);
      part_of_split(*pair.rules, parameter.key(), joined, parameter.value().sizes()).copy_(parameter.value());
      part_of_split(*pair.rules, parameter.key(), covered, parameter.value().sizes()).fill_(1);
      ranks.all_reduce(joined).wait();
      ranks.all_reduce(covered).wait();
      EXPECT_TRUE(at::equal(joined, whole)) << parameter.key();
      EXPECT_TRUE(covered.eq(1).all().item<bool>()) << parameter.key() << ": parts overlap or leave gaps";
    }
  });
}

TEST_P(OrdinaryModelTest, RecomputedLayersEqualTheWhole) {
  on_ranks([](const comm::Group& ranks) {
    auto pair = make_pair(ranks, block_rules(), at::kDouble, block);
    const at::Tensor x = at::randn({2, 5, kWidth}, at::kDouble).requires_grad_();
    const at::Tensor y = recompute::call([&](const at::Tensor& input) { return pair.split->forward(input); }, x);
    y.pow(2).sum().backward();
    const at::Tensor dx = x.grad().clone();
    x.mutable_grad().reset();
    const at::Tensor y_whole = pair.whole->forward(x);
    y_whole.pow(2).sum().backward();
    expect_split_close(y, y_whole, 1e-11, "output");
    expect_split_close(dx, x.grad(), 1e-11, "gradient of the input");
    expect_same_parameters(pair, 1e-11, true);
  });
}

TEST_P(OrdinaryModelTest, AutocastEqualsTheWholeToTheTypesPrecision) {
  on_ranks([](const comm::Group& ranks) {
    auto pair = make_pair(ranks, tied_rules(), at::kFloat, tied);
    const auto run = [&](test::TiedModel& model) {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const at::Tensor y = model->forward(ids(2, 9));
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      y.to(at::kFloat).pow(2).mean().backward();
      return y.detach().to(at::kFloat);
    };
    expect_split_close(run(pair.split), run(pair.whole), 2e-2, "output");
    for (const auto& parameter : pair.split->named_parameters()) {
      EXPECT_EQ(parameter.value().grad().scalar_type(), at::kFloat) << parameter.key();
    }
    expect_same_parameters(pair, 6e-2, true);
  });
}

TEST_P(OrdinaryModelTest, TheSplitStaysThroughOtherTypesCopiesAndNewMemory) {
  on_ranks([](const comm::Group& ranks) {
    auto pair = make_pair(ranks, kMlpRules, at::kFloat, [] { return test::Mlp(16, 25); });
    pair.split->to(at::kDouble); // set_data()
    pair.whole->to(at::kDouble);
    EXPECT_ANY_THROW(pair.split->fc1->weight.set_data(torch::zeros_like(pair.split->fc1->weight).to_sparse()));
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : pair.split->parameters()) { // as flat buffers take parameters in
        const at::Tensor memory = at::empty({parameter.numel()}, at::kDouble);
        memory.view_as(parameter).copy_(parameter.detach());
        parameter.set_data(memory.view_as(parameter));
      }
    }
    expect_split_equal(pair, at::randn({5, 16}, at::kDouble));
    const torch::NoGradGuard no_grad;
    const at::Tensor x = at::randn({5, 16}, at::kDouble);
    const at::Tensor y = pair.whole->forward(x);
    const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(pair.split->fc2->clone());
    expect_split_close(copy->forward(at::gelu(pair.split->fc1->forward(x))), y, 1e-11, "clone of a module");
    const auto hidden = at::gelu(at::linear(x, pair.split->fc1->weight.detach(), pair.split->fc1->bias.data()));
    expect_split_close(
        at::linear(hidden, pair.split->fc2->weight.clone().to(at::kFloat).to(at::kDouble), pair.whole->fc2->bias), y,
        1e-6, "copies of the weight");
    expect_split_close(at::addmm(pair.split->fc2->bias, hidden, (2 * pair.split->fc2->weight).transpose(0, 1).div(2)),
                       y, 1e-11, "element by element");
  });
}

} // namespace
} // namespace trireme::tensor
