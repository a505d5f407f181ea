// Gradients that are added up in a store: it is told of each bucket before that bucket is there again.
#include <trireme/base/error.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/bucket/state_store.h>

#include <tests/support/recording_store.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <string>
#include <utility>

namespace trireme::bucket {
namespace {

using test::RecordingStore;

constexpr int64_t kUnits = 4;

TEST(GradientShardsTest, ABucketIsNamedAheadWhileTheOneBeforeItIsAddedUp) {
  torch::NoGradGuard no_grad;
  std::vector<torch::nn::Linear> layers;
  NamedTensors parameters;
  for (int64_t i = 0; i < kUnits; ++i) {
    layers.emplace_back(torch::nn::LinearOptions(3, 3).bias(false));
    parameters.emplace_back(concat("weight", i), layers.back()->weight);
  }
  const auto unit_of = [&](const at::Tensor& parameter) {
    int64_t unit = 0;
    while (!layers[static_cast<size_t>(unit)]->weight.is_same(parameter)) {
      ++unit;
    }
    return unit;
  };
  const auto store = std::make_shared<RecordingStore>();
  FlatParameters flat(
      parameters, LayoutOptions{}, [](int64_t numel, at::ScalarType type) { return torch::empty({numel}, type); },
      FlatOptions{.shard_gradients = true, .shard_parameters = true, .unit_of = unit_of, .gradient_store = store});
  ASSERT_EQ(std::ssize(flat.layout().buckets()), kUnits);
  const auto micro_batch = [&](float value) {
    for (int64_t b = 0; b < kUnits; ++b) {
      flat.bucket_grad(b).fill_(value + static_cast<float>(b));
      flat.accumulate(b);
    }
    return store->take();
  };
  EXPECT_EQ(micro_batch(1), "g0 g1 g2 g3 r0") << "what is not there yet is not read; the first one comes again next";
  EXPECT_EQ(micro_batch(10), "g0 r1 g1 r2 g2 r3 g3 r0");
  for (int64_t b = 0; b < kUnits; ++b) {
    const at::Tensor sum = flat.owned_grad(b, flat.plan().mine(b));
    EXPECT_TRUE(sum.equal(torch::full_like(sum, 11.0f + 2.0f * static_cast<float>(b)))) << "bucket " << b;
  }
  store->take();
  flat.clear_grads();
  EXPECT_EQ(micro_batch(1), "g0 g1 g2 g3 r0") << "the last step's are not read";
  store->name_ahead(2);
  EXPECT_EQ(micro_batch(1), "g0 r1 r2 g1 r2 r3 g2 r3 r0 g3 r0 r1");
  store->name_ahead(9);
  EXPECT_EQ(micro_batch(1), "g0 r1 r2 r3 g1 r2 r3 r0 g2 r3 r0 r1 g3 r0 r1 r2") << "itself is not named";
}

} // namespace
} // namespace trireme::bucket
