// Arrays on the host of a device, all of them or a share.
#include <trireme/memory/offload/host_store.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <numeric>

namespace trireme::offload {
namespace {

using bucket::StateStore;
using bucket::StoredArray;
using testing::ElementsAre;

const at::Device kElsewhere(at::kMeta); // stands for any that is not the CPU: its tensors have no values

TEST(HostStoreTest, ArraysAreApartAndHaveTheirFirstValues) {
  const auto store = make_host_store(false);
  const std::vector<StoredArray> arrays = {
      {at::kFloat, 0, {5, 0, 1000}}, {at::kByte, 127, {3, 7, 11}}, {at::kBFloat16, 1, {1, 2, 3}}};
  const int64_t first = store->add(arrays, at::kCPU);
  const int64_t second = store->add(arrays, at::kCPU);
  std::vector<at::Tensor> all;
  for (const int64_t buffer : {first, second}) {
    for (int64_t bucket = 0; bucket < 3; ++bucket) {
      const std::vector<at::Tensor>& parts = store->acquire(buffer, bucket);
      ASSERT_EQ(parts.size(), arrays.size());
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].scalar_type(), arrays[i].type);
        EXPECT_EQ(parts[i].numel(), arrays[i].numel[bucket]);
        EXPECT_TRUE(parts[i].is_contiguous());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(parts[i].data_ptr()) % 64, 0U) << "of a cache line, or none";
        EXPECT_TRUE(parts[i].eq(arrays[i].initial).all().item<bool>());
        all.push_back(parts[i]);
      }
      store->release(buffer, bucket, true);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].fill_(static_cast<double>(i));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(all[i].eq(static_cast<double>(i)).all().item<bool>()) << i;
  }
}

std::vector<bool> moved(double ratio, const std::vector<int64_t>& numel) {
  return make_partial_store(make_host_store(false), ratio)->on_host(numel, kElsewhere);
}

TEST(HostStoreTest, AShareIsOfWholeBucketsFromTheFirstOn) {
  EXPECT_THAT(moved(0, {10, 10, 10, 10}), ElementsAre(false, false, false, false));
  EXPECT_THAT(moved(0.5, {10, 10, 10, 10}), ElementsAre(true, true, false, false));
  EXPECT_THAT(moved(0.3, {10, 10, 10, 10}), ElementsAre(true, false, false, false));
  EXPECT_THAT(moved(0.5, {10, 20, 10}), ElementsAre(true, false, false))
      << "the middle of the second is the share's end";
  EXPECT_THAT(moved(0.6, {10, 20, 10}), ElementsAre(true, true, false));
  EXPECT_THAT(moved(1, {10, 20, 0, 10}), ElementsAre(true, true, true, true));
}

TEST(HostStoreTest, TheRestStaysOnTheDevice) {
  const auto store = make_partial_store(make_host_store(false), 0.5);
  for (const std::vector<int64_t>& numel : {std::vector<int64_t>{4, 4, 4, 4}, std::vector<int64_t>{2, 8}}) {
    const std::vector<bool> on_host = store->on_host(numel, kElsewhere);
    std::vector<int64_t> masters = numel; // which only moved buckets have
    for (size_t b = 0; b < numel.size(); ++b) {
      masters[b] = on_host[b] ? numel[b] : 0;
    }
    const int64_t buffer = store->add({{at::kFloat, 0, masters}, {at::kFloat, 3, numel}}, kElsewhere);
    for (size_t b = 0; b < numel.size(); ++b) {
      const std::vector<at::Tensor>& parts = store->acquire(buffer, static_cast<int64_t>(b));
      EXPECT_EQ(parts[1].is_cpu(), on_host[b]) << b;
      EXPECT_EQ(parts[0].numel(), masters[b]) << b;
      EXPECT_EQ(parts[1].numel(), numel[b]) << b;
      store->release(buffer, static_cast<int64_t>(b), true);
    }
  }
}

// A model on the CPU is where it is.
TEST(HostStoreTest, BuffersOnTheCpuAreInMemory) {
  const auto store = make_partial_store(make_host_store(false), 0.5);
  const int64_t buffer = store->add({{at::kFloat, 2, {3, 3}}}, at::kCPU);
  for (const int64_t bucket : {0, 1}) {
    EXPECT_TRUE(store->acquire(buffer, bucket).front().eq(2).all().item<bool>());
    store->release(buffer, bucket, false);
  }
}

} // namespace
} // namespace trireme::offload
