#include <trireme/shards/zero/tiled_linear.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::zero {
namespace {

using testing::HasSubstr;

struct TiledCase {
  int64_t in_splits;
  int64_t out_splits;
  bool bias = true;
};

class TiledLinearEqualsLinear : public testing::TestWithParam<TiledCase> {};

TEST_P(TiledLinearEqualsLinear, ForwardAndAllGradients) {
  const TiledCase c = GetParam();
  torch::manual_seed(4);
  torch::nn::Linear linear(torch::nn::LinearOptions(21, 17).bias(c.bias)); // nothing divides
  TiledLinear tiled(*linear, TiledLinearOptions{0, 0, true, c.in_splits, c.out_splits});
  EXPECT_EQ(tiled->children().size(), static_cast<size_t>(c.in_splits * c.out_splits));
  EXPECT_TRUE(tiled->weight().equal(linear->weight));
  EXPECT_EQ(tiled->bias().defined(), c.bias);
  if (c.bias) {
    EXPECT_TRUE(tiled->bias().equal(linear->bias));
  }
  for (const auto& shape : std::vector<std::vector<int64_t>>{{21}, {5, 21}, {2, 3, 21}}) {
    linear->zero_grad();
    tiled->zero_grad();
    const at::Tensor x = torch::randn(shape).requires_grad_(true);
    const at::Tensor same = x.detach().clone().requires_grad_(true);
    const at::Tensor expected = linear->forward(x);
    const at::Tensor found = tiled->forward(same);
    EXPECT_EQ(found.sizes(), expected.sizes());
    EXPECT_TRUE(torch::allclose(found, expected, 1e-6, 1e-6));
    const at::Tensor by = torch::randn(expected.sizes());
    expected.mul(by).sum().backward();
    found.mul(by).sum().backward();
    EXPECT_TRUE(torch::allclose(same.grad(), x.grad(), 1e-5, 1e-6));
    const auto placements = tiled->placements();
    EXPECT_EQ(placements.size(), tiled->parameters().size());
    int64_t elements = 0;
    for (const auto& item : tiled->named_parameters()) {
      const bucket::Placement& place = placements.at(item.value().unsafeGetTensorImpl());
      const bool is_weight = place.whole_name(item.key()) == "weight";
      EXPECT_TRUE(is_weight || place.whole_name(item.key()) == "bias") << item.key();
      EXPECT_EQ(place.whole_name("net.fc." + item.key()), is_weight ? "net.fc.weight" : "net.fc.bias");
      at::Tensor part = (is_weight ? linear->weight : linear->bias).grad();
      EXPECT_EQ(part.sizes(), place.global_shape);
      for (int64_t dim = 0; dim < part.dim(); ++dim) {
        part = part.narrow(dim, place.box_offset[dim], item.value().size(dim));
      }
      EXPECT_TRUE(torch::allclose(item.value().grad(), part, 1e-5, 1e-6)) << item.key();
      elements += item.value().numel();
    }
    EXPECT_EQ(elements, 21 * 17 + (c.bias ? 17 : 0));
  }
}

// Sums of whole numbers are exact in any order.
TEST_P(TiledLinearEqualsLinear, BitForBitWhereNothingIsRounded) {
  const TiledCase c = GetParam();
  torch::manual_seed(4);
  torch::nn::Linear linear(torch::nn::LinearOptions(21, 17).bias(c.bias));
  const auto make_whole_numbers = [](const at::Tensor& values) {
    values.detach().copy_(torch::randint(-8, 9, values.sizes()));
  };
  make_whole_numbers(linear->weight);
  if (c.bias) {
    make_whole_numbers(linear->bias);
  }
  TiledLinear tiled(*linear, TiledLinearOptions{0, 0, true, c.in_splits, c.out_splits});
  const at::Tensor x = torch::randint(-8, 9, {6, 21}).to(torch::kFloat32).requires_grad_(true);
  const at::Tensor same = x.detach().clone().requires_grad_(true);
  const at::Tensor by = torch::randint(-8, 9, {6, 17}).to(torch::kFloat32);
  const at::Tensor expected = linear->forward(x);
  const at::Tensor found = tiled->forward(same);
  EXPECT_TRUE(found.equal(expected));
  expected.mul(by).sum().backward();
  found.mul(by).sum().backward();
  EXPECT_TRUE(same.grad().equal(x.grad()));
}

INSTANTIATE_TEST_SUITE_P(All, TiledLinearEqualsLinear,
                         testing::Values(TiledCase{1, 1}, TiledCase{1, 4}, TiledCase{1, 17}, TiledCase{2, 3},
                                         TiledCase{5, 1}, TiledCase{21, 17}, TiledCase{3, 4, false},
                                         TiledCase{1, 2, false}),
                         [](const auto& info) {
                           return concat("in", info.param.in_splits, "_out", info.param.out_splits,
                                         info.param.bias ? "" : "_without_bias");
                         });

TEST(TiledLinearTest, InitialValuesHaveALinearsDistribution) {
  torch::manual_seed(5);
  TiledLinear tiled(TiledLinearOptions{400, 300, true, 4, 3});
  const double bound = 1 / std::sqrt(400.0);
  for (const at::Tensor& values : {tiled->weight(), tiled->bias()}) {
    EXPECT_LE(values.abs().max().item<double>(), bound);
    EXPECT_NEAR(values.abs().mean().item<double>(), bound / 2, bound * 0.05);
    EXPECT_NEAR(values.mean().item<double>(), 0, bound * 0.08);
  }
  torch::manual_seed(5);
  EXPECT_TRUE(TiledLinear(TiledLinearOptions{400, 300, true, 4, 3})->weight().equal(tiled->weight()));
}

TEST(TiledLinearTest, AnotherTypeIsTaken) {
  torch::nn::Linear linear(6, 5);
  linear->to(torch::kFloat64);
  TiledLinear tiled(*linear, TiledLinearOptions{.in_splits = 2, .out_splits = 2});
  EXPECT_EQ(tiled->weight().scalar_type(), torch::kFloat64);
  EXPECT_TRUE(tiled->weight().equal(linear->weight));
}

TEST(TiledLinearTest, TilesAsFewAsFit) {
  const auto largest = [](const TiledLinearOptions& options) {
    const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    return ceil_div(options.out_features, options.out_splits) *
           (ceil_div(options.in_features, options.in_splits) + (options.bias ? 1 : 0));
  };
  for (const bool bias : {true, false}) {
    for (const int64_t bytes : {16, 100, 4000, 4004, 100'000, 10'000'000}) {
      const TiledLinearOptions options = tiles_within(bytes, 500, 300, bias, 4);
      EXPECT_LE(2 * 4 * largest(options), bytes);
      EXPECT_TRUE(options.in_splits == 1 || options.out_splits == 300) << "outputs are cut first";
      TiledLinearOptions fewer = options;
      (options.in_splits > 1 ? fewer.in_splits : fewer.out_splits) -= 1;
      EXPECT_TRUE(options.in_splits * options.out_splits == 1 || 2 * 4 * largest(fewer) > bytes) << bytes;
    }
  }
  EXPECT_EQ(tiles_within(2 * 4 * 501 * 300, 500, 300).out_splits, 1);
  EXPECT_THROW(tiles_within(15, 500, 300), InputError);
}

TEST(TiledLinearTest, SplitsThatLeaveNothingAreRefused) {
  const auto message = [](const TiledLinearOptions& options) -> std::string {
    try {
      TiledLinear tiled(options);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message({4, 5, true, 5, 1}), HasSubstr("4 in features into 5"));
  EXPECT_THAT(message({4, 5, true, 1, 6}), HasSubstr("5 out features into 6"));
  EXPECT_THAT(message({4, 5, true, 0, 1}), HasSubstr("4 in features into 0"));
  EXPECT_THAT(message({0, 5, true, 1, 1}), HasSubstr("0 in features"));
}

} // namespace
} // namespace trireme::zero
