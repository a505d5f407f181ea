#include <trireme/base/error.h>
#include <trireme/device/absent_memory.h>
#include <trireme/shards/bucket/flat_parameters.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

namespace trireme::bucket {
namespace {

using testing::AllOf;
using testing::HasSubstr;

at::Tensor empty_buffer(int64_t numel, at::ScalarType type) {
  return torch::full({numel}, -7, type);
}

/// Two layers as units 0 and 1, and a scale that belongs to none; the shards of rank 1 of 2.
class ParameterShardsTest : public testing::Test {
 protected:
  ParameterShardsTest() {
    torch::manual_seed(5);
    LayoutOptions options;
    options.shards = 2;
    FlatOptions sharding{.rank = 1,
                         .size = 2,
                         .shard_gradients = true,
                         .shard_parameters = true,
                         .unit_of = [this](const at::Tensor& p) {
                           const auto is = [&](const at::Tensor& q) { return p.is_same(q); };
                           return is(first->weight) || is(first->bias)     ? 0
                                  : is(second->weight) || is(second->bias) ? 1
                                                                           : TensorInfo::kNoUnit;
                         }};
    flat = std::make_unique<FlatParameters>(NamedTensors{{"first.weight", first->weight},
                                                         {"first.bias", first->bias},
                                                         {"second.weight", second->weight},
                                                         {"second.bias", second->bias},
                                                         {"scale", scale}},
                                            options, empty_buffer, sharding);
  }
  void move_in_all() {
    for (size_t b = 0; b < flat->layout().buckets().size(); ++b) {
      flat->move_in(static_cast<int64_t>(b));
      flat->update_shard(static_cast<int64_t>(b));
      flat->release(static_cast<int64_t>(b));
    }
  }

  torch::nn::Linear first{5, 7};
  torch::nn::Linear second{7, 3};
  at::Tensor scale = torch::tensor({2.0f, 3.0f});
  std::unique_ptr<FlatParameters> flat;
};

TEST_F(ParameterShardsTest, EachUnitHasABucketAndTheRestComesLast) {
  const auto& buckets = flat->layout().buckets();
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].unit, 1) << "the last unit's gradients come first";
  EXPECT_EQ(buckets[1].unit, 0);
  EXPECT_EQ(buckets[2].unit, TensorInfo::kNoUnit);
  EXPECT_TRUE(flat->is_replicated(2));
  EXPECT_FALSE(flat->is_replicated(0));
}

TEST_F(ParameterShardsTest, ReleasedParametersHaveNoMemoryButTheirShape) {
  const at::Tensor scale_before = scale.clone();
  move_in_all();
  EXPECT_FALSE(device::has_memory(first->weight));
  EXPECT_EQ(first->weight.sizes(), (at::IntArrayRef{7, 5}));
  EXPECT_TRUE(scale.equal(scale_before));
  const at::Tensor view = first->weight.detach().t(); // fine until it is read
  try {
    view.sum();
    ADD_FAILURE() << "was read";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("\"first.bias\""), HasSubstr("2 tensors"), HasSubstr("not gathered")));
  }
}

TEST_F(ParameterShardsTest, ViewsSeeTheValuesAgainOnceGathered) {
  torch::NoGradGuard no_grad;
  const at::Tensor expected = first->weight.clone();
  const Bucket bucket = flat->layout().buckets()[1];
  flat->move_in(1);
  flat->update_shard(1);
  const at::Tensor both = flat->bucket_data(1).clone(); // what an all-gather would bring
  const Range mine = shard_of(bucket, 1, 2);
  EXPECT_TRUE(flat->owned_data(1, mine).equal(both.slice(0, mine.begin - bucket.begin, mine.end - bucket.begin)));
  const at::Tensor view = first->weight.t();
  flat->release(1);
  EXPECT_FALSE(device::has_memory(view));
  flat->bucket_data(1).copy_(both);
  EXPECT_FALSE(device::has_memory(view)) << "values may still be on their way";
  EXPECT_THROW(view.sum(), c10::Error);
  flat->publish(1);
  EXPECT_TRUE(view.equal(expected.t()));
  EXPECT_TRUE(first->weight.equal(expected));
}

TEST_F(ParameterShardsTest, TheShardIsAllThatStays) {
  move_in_all();
  int64_t elements = 0;
  flat->for_each_sharded([&](int64_t, int64_t, const at::Tensor& values) { elements += values.numel(); });
  EXPECT_LT(elements, 7 * 5 + 7 + 7 * 3 + 3);
  EXPECT_GT(elements, 0);
  EXPECT_EQ(flat->flat_data().defined(), false);
}

TEST_F(ParameterShardsTest, GapsAreZeroWhateverMemoryHeld) {
  move_in_all();
  const Bucket bucket = flat->layout().buckets()[0];
  flat->move_in(1);
  flat->update_shard(1);
  const Range mine = shard_of(flat->layout().buckets()[1], 1, 2);
  const at::Tensor shard = flat->owned_data(1, mine);
  EXPECT_EQ(shard.eq(-7).sum().item<int64_t>(), 0) << "bucket of " << bucket.numel();
}

TEST(MemoryPoolTest, GivesBackWhatFits) {
  int64_t allocated = 0;
  MemoryPool pool(
      [&](int64_t numel, at::ScalarType type) {
        ++allocated;
        return torch::empty({numel}, type);
      },
      4 * 1000);
  at::Tensor a = pool.take(500, torch::kFloat32);
  const void* const memory = a.const_data_ptr();
  pool.give_back(std::move(a));
  EXPECT_EQ(pool.take(400, torch::kFloat32).const_data_ptr(), memory);
  EXPECT_EQ(allocated, 1);
  pool.give_back(torch::empty({500}, torch::kFloat32));
  EXPECT_EQ(pool.take(400, torch::kBFloat16).numel(), 400) << "another type";
  pool.give_back(torch::empty({900}, torch::kFloat32)); // more than may wait: the largest goes
  EXPECT_EQ(pool.take(900, torch::kFloat32).numel(), 900);
  EXPECT_EQ(allocated, 3);
}

TEST(FlatLayoutTest, AnOrderThatTearsAUnitApartIsRefused) {
  const std::vector<TensorInfo> tensors = {{"a", {4}, 0}, {"b", {4}, 1}, {"c", {4}, 0}};
  EXPECT_THROW(FlatLayout(tensors, {0, 1, 2}, {}), Error);
  EXPECT_EQ(FlatLayout(tensors, {0, 2, 1}, {}).buckets().size(), 2U);
}

} // namespace
} // namespace trireme::bucket
