#include <trireme/monitor/resources.h>

#include <gtest/gtest.h>

#include <vector>

namespace trireme::monitor {
namespace {

TEST(ResourcesTest, PeakSeesMemoryThatWasUsedAndGivenBack) {
  constexpr int64_t kBytes = 64 << 20;
  const int64_t before = current_rss_bytes();
  {
    std::vector<char> used(kBytes, 1);
    ASSERT_EQ(used[kBytes / 2], 1);
    EXPECT_GE(current_rss_bytes(), before + kBytes * 9 / 10);
  }
  EXPECT_GE(peak_rss_bytes(), before + kBytes * 9 / 10);
  EXPECT_GE(peak_rss_bytes(), current_rss_bytes());
}

TEST(ResourcesTest, ClocksAndNames) {
  const double first = monotonic_seconds();
  EXPECT_LE(first, monotonic_seconds());
  EXPECT_GT(unix_seconds(), 1.7e9);
  EXPECT_EQ(format_utc(1700000000.9), "2023-11-14 22:13 UTC");
  EXPECT_FALSE(host_name().empty());
}

} // namespace
} // namespace trireme::monitor
