#include <trireme/monitor/series.h>

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace trireme::monitor {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

std::vector<Point> wave(int count) {
  std::vector<Point> points;
  for (int i = 0; i < count; ++i) {
    points.push_back({static_cast<double>(i), std::sin(i * 0.01)});
  }
  return points;
}

TEST(DownsampleTest, LeavesShortCurvesAlone) {
  const auto points = wave(1000);
  EXPECT_EQ(downsample(points, 1000).size(), 1000u);
  EXPECT_TRUE(downsample({}, 1000).empty());
}

TEST(DownsampleTest, KeepsEndsExtremesAndOrder) {
  auto points = wave(12345);
  points[7001].y = 50;
  points[7003].y = -40;
  const auto kept = downsample(points, 1000);
  EXPECT_LE(kept.size(), 1000u);
  EXPECT_GT(kept.size(), 600u);
  EXPECT_EQ(kept.front().x, 0);
  EXPECT_EQ(kept.back().x, 12344);
  bool high = false;
  bool low = false;
  for (size_t i = 0; i < kept.size(); ++i) {
    high = high || (kept[i].x == 7001 && kept[i].y == 50);
    low = low || (kept[i].x == 7003 && kept[i].y == -40);
    ASSERT_TRUE(i == 0 || kept[i - 1].x < kept[i].x) << "at " << i;
    ASSERT_EQ(kept[i].y, points[static_cast<size_t>(kept[i].x)].y);
  }
  EXPECT_TRUE(high);
  EXPECT_TRUE(low);
}

TEST(DownsampleTest, KeepsAGapOfOneValueVisible) {
  auto points = wave(5000);
  points[2500].y = std::numeric_limits<double>::quiet_NaN();
  int gaps = 0;
  for (const Point& point : downsample(points, 300)) {
    gaps += std::isnan(point.y) ? 1 : 0;
  }
  EXPECT_EQ(gaps, 1);
  for (Point& point : points) {
    point.y = std::numeric_limits<double>::quiet_NaN();
  }
  EXPECT_LE(downsample(points, 300).size(), 300u);
}

TEST(DownsampleTest, HoldsTheLimitForEverySize) {
  for (int count = 8; count < 400; ++count) {
    auto points = wave(count);
    for (size_t i = 0; i < points.size(); i += 3) {
      points[i].y = std::numeric_limits<double>::quiet_NaN();
    }
    ASSERT_LE(downsample(points, 50).size(), 50u) << count;
  }
}

TEST(SmoothTest, AConstantStaysItself) {
  std::vector<Point> points;
  for (int i = 0; i < 300; ++i) {
    points.push_back({static_cast<double>(i), 2.5});
  }
  for (const Point& point : smooth(points, 40)) {
    ASSERT_NEAR(point.y, 2.5, 1e-12);
  }
}

TEST(SmoothTest, ReducesNoiseAndSkipsWhatIsNotFinite) {
  std::vector<Point> points;
  for (int i = 0; i < 2000; ++i) {
    points.push_back({static_cast<double>(i), i % 2 == 0 ? 1.0 : 3.0});
  }
  points[1500].y = std::numeric_limits<double>::quiet_NaN();
  const auto result = smooth(points, 50);
  EXPECT_TRUE(std::isnan(result[1500].y));
  EXPECT_NEAR(result[1999].y, 2, 0.1);
  EXPECT_NEAR(result[1501].y, 2, 0.1);
}

TEST(SmoothTest, FollowsASteepStart) {
  std::vector<Point> points;
  for (int i = 0; i < 1000; ++i) {
    points.push_back({static_cast<double>(i), 5 * std::exp(-i / 50.0)});
  }
  // With the full window from the start it would stand at 3.4 here.
  EXPECT_NEAR(smooth(points, 200)[50].y, points[50].y, 0.2);
}

TEST(MedianTest, IgnoresWhatIsNotFinite) {
  EXPECT_EQ(median({3, std::numeric_limits<double>::quiet_NaN(), 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_TRUE(std::isnan(median({std::numeric_limits<double>::quiet_NaN()})));
}

TEST(TicksTest, AreRoundAndInside) {
  EXPECT_THAT(linear_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(linear_ticks(1.31, 1.52, 4), ElementsAre(DoubleNear(1.35, 1e-12), DoubleNear(1.4, 1e-12),
                                                       DoubleNear(1.45, 1e-12), DoubleNear(1.5, 1e-12)));
  EXPECT_THAT(linear_ticks(-1, 1, 4), ElementsAre(-1, -0.5, 0, 0.5, 1));
  EXPECT_THAT(log_ticks(1, 3000), ElementsAre(1, 10, 100, DoubleNear(1000, 1e-9)));
  EXPECT_THAT(log_ticks(1, 12), ElementsAre(1, 2, 5, 10));
}

TEST(TicksTest, SurviveDegenerateRanges) {
  EXPECT_THAT(linear_ticks(2, 2, 5), ElementsAre(2));
  EXPECT_LE(linear_ticks(0, 1e300, 5).size(), 20u);
  EXPECT_LE(linear_ticks(1e15, 1e15 + 1, 5).size(), 100u);
}

TEST(TicksTest, LabelsAreShortAndExact) {
  EXPECT_EQ(format_tick(0), "0");
  EXPECT_EQ(format_tick(0.0005), "0.0005");
  EXPECT_EQ(format_tick(0.002), "0.002");
  EXPECT_EQ(format_tick(2e-6), "2e-6");
  EXPECT_EQ(format_tick(1200), "1,200");
  EXPECT_EQ(format_tick(40000), "40k");
  EXPECT_EQ(format_tick(3.5e6), "3.5M");
  EXPECT_EQ(format_tick(-0.5), "-0.5");
}

} // namespace
} // namespace trireme::monitor
