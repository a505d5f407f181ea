#include <trireme/data/from_torch.h>

#include <trireme/data/loader.h>

#include <gmock/gmock.h>

#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/data/transforms/tensor.h>

namespace trireme::data {
namespace {

using testing::HasSubstr;

// Sample i is {i, 10 i}, its target i squared.
class Squares : public torch::data::datasets::Dataset<Squares> {
 public:
  torch::data::Example<> get(size_t i) override {
    const auto value = static_cast<double>(i);
    return {torch::tensor({value, 10 * value}), torch::tensor(value * value)};
  }
  std::optional<size_t> size() const override { return 7; }
};

class Endless : public Squares {
 public:
  std::optional<size_t> size() const override { return std::nullopt; }
};

void expect_squares(const Dataset& data, double factor = 1) {
  ASSERT_EQ(data.size(), 7);
  const std::vector<int64_t> numbers = {4, 0, 6};
  const Batch batch = data.get(numbers);
  EXPECT_EQ(batch.samples, 3);
  EXPECT_TRUE(batch.input().allclose(torch::tensor({{4.0, 40.0}, {0.0, 0.0}, {6.0, 60.0}}) * factor)) << batch.input();
  EXPECT_TRUE(batch.target().allclose(torch::tensor({16.0, 0.0, 36.0}))) << batch.target();
}

TEST(FromTorchTest, SinglesAndCollatedSamplesAreTheSameBatches) {
  expect_squares(*from_torch(Squares()));
  expect_squares(*from_torch(Squares().map(torch::data::transforms::Stack<>())));
  expect_squares(
      *from_torch(Squares().map(torch::data::transforms::TensorLambda<>([](const at::Tensor& x) { return x * 2; }))),
      2);
}

TEST(FromTorchTest, WithoutTargets) {
  const auto data = from_torch(torch::data::datasets::TensorDataset(torch::arange(12.0).reshape({6, 2})));
  const std::vector<int64_t> numbers = {5, 1};
  const Batch batch = data->get(numbers);
  EXPECT_TRUE(batch.input().equal(torch::tensor({{10.0, 11.0}, {2.0, 3.0}})));
  EXPECT_TRUE(batch.targets.empty());
}

TEST(FromTorchTest, WithoutASizeItIsRefused) {
  try {
    from_torch(Endless());
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a dataset without a size"));
  }
}

} // namespace
} // namespace trireme::data
