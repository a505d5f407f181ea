// Buffers of the host and their pool on the CPU; with a device they are tested in tests/sim_device/memory_test.cpp.
#include <trireme/device/host_buffer.h>

#include <torch/types.h>

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace trireme::device {
namespace {

constexpr int64_t kPage = 4096;

TEST(HostBufferTest, WholePagesThatTensorsHold) {
  HostBuffer buffer(kPage + 1);
  EXPECT_EQ(buffer.size(), 2 * kPage);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kPage, 0u);
  EXPECT_FALSE(buffer.is_held());
  const at::Tensor whole = buffer.tensor(2 * kPage);
  EXPECT_EQ(whole.count_nonzero().item<int64_t>(), 0);
  {
    const at::Tensor part = buffer.tensor(3, at::kFloat, kPage);
    EXPECT_EQ(part.const_data_ptr(), buffer.data() + kPage);
    part.fill_(1);
    EXPECT_TRUE(buffer.is_held());
  }
  EXPECT_EQ(whole.count_nonzero().item<int64_t>(), 3 * 2) << "1.0F has two bytes that are not 0";
  const at::Tensor view = whole.slice(0, 0, 8).view(at::kDouble);
  buffer = HostBuffer();
  EXPECT_EQ(buffer.size(), 0);
  EXPECT_FALSE(buffer.is_held());
  EXPECT_EQ(view.item<double>(), 0) << "a tensor keeps the memory";
}

TEST(HostPoolTest, GivesAgainWhatHasItsSize) {
  const auto pool = std::make_shared<HostPool>(at::kCPU);
  auto small = pool->take(1);
  auto other = small;
  const void* const first = small->data();
  small.reset();
  EXPECT_NE(pool->take(1)->data(), first) << "somebody has it";
  other.reset();
  EXPECT_NE(pool->take(kPage + 1)->data(), first);
  const auto again = pool->take(kPage);
  const auto second = pool->take(kPage);
  EXPECT_TRUE(again->data() == first || second->data() == first);
}

TEST(HostPoolTest, KeepsSpareBuffersWithinItsMost) {
  int64_t bytes = 0;
  auto pool = std::make_shared<HostPool>(at::kCPU, [&](int64_t more) { bytes += more; });
  std::vector<std::shared_ptr<HostBuffer>> used = {pool->take(kPage), pool->take(2 * kPage), pool->take(4 * kPage)};
  EXPECT_EQ(bytes, 7 * kPage);
  used.clear();
  EXPECT_EQ(bytes, 7 * kPage) << "there is no limit yet";
  pool->set_most(6 * kPage);
  EXPECT_EQ(bytes, 6 * kPage) << "the smallest goes";
  used.push_back(pool->take(3 * kPage));
  EXPECT_EQ(bytes, 3 * kPage) << "those in use come first";
  pool->set_most(0);
  EXPECT_EQ(bytes, 3 * kPage);
  used.clear();
  EXPECT_EQ(bytes, 0);
  pool->set_most(std::numeric_limits<int64_t>::max());
  used.push_back(pool->take(1));
  used.clear();
  EXPECT_EQ(bytes, kPage);
  pool.reset();
  EXPECT_EQ(bytes, 0);
}

} // namespace
} // namespace trireme::device
