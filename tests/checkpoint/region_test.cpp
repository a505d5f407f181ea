#include <trireme/checkpoint/region.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// The row-major numbers of the elements of a region, the slow and obvious way.
std::vector<int64_t> elements_of(const Region& region, const std::vector<int64_t>& shape) {
  std::vector<int64_t> in_box;
  const int64_t numel = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  for (int64_t flat = 0; flat < numel; ++flat) {
    int64_t rest = flat;
    bool inside = true;
    for (size_t dim = shape.size(); dim-- > 0;) {
      const int64_t at = rest % shape[dim];
      rest /= shape[dim];
      inside = inside && (region.box_size.empty() ||
                          (at >= region.box_offset[dim] && at < region.box_offset[dim] + region.box_size[dim]));
    }
    if (inside) {
      in_box.push_back(flat);
    }
  }
  return {in_box.begin() + region.begin, in_box.begin() + region.end};
}

TEST(RegionTest, RunsNameExactlyTheElementsOfRandomBoxesAndRanges) {
  std::mt19937 random(7);
  const auto upto = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<int64_t> shape;
    Region region;
    int64_t in_box = 1;
    int64_t numel = 1;
    const bool has_box = upto(3) > 0;
    for (int64_t dims = upto(4); dims > 0; --dims) {
      shape.push_back(1 + upto(4));
      const int64_t offset = upto(shape.back() - 1);
      const int64_t size = has_box ? 1 + upto(shape.back() - offset - 1) : shape.back();
      if (has_box) {
        region.box_offset.push_back(offset);
        region.box_size.push_back(size);
      }
      in_box *= size;
      numel *= shape.back();
    }
    region.begin = upto(in_box);
    region.end = region.begin + upto(in_box - region.begin);
    ASSERT_EQ(region_problem(region, shape), "");
    const int64_t begin = upto(numel);
    const int64_t end = begin + upto(numel - begin);

    const std::vector<int64_t> all = elements_of(region, shape);
    std::vector<std::pair<int64_t, int64_t>> expected; // (in tensor, in shard)
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] >= begin && all[i] < end) {
        expected.emplace_back(all[i], i);
      }
    }
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const auto& run : runs(region, shape, begin, end)) {
      for (int64_t i = 0; i < run.numel; ++i) {
        found.emplace_back(run.in_tensor + i, run.in_shard + i);
      }
    }
    ASSERT_EQ(found, expected) << "trial " << trial;
  }
}

TEST(RegionTest, CommonRunsNameExactlyTheElementsOfBoth) {
  std::mt19937 random(11);
  const auto upto = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<int64_t> shape;
    for (int64_t dims = upto(4); dims > 0; --dims) {
      shape.push_back(1 + upto(4));
    }
    Region regions[2];
    for (Region& region : regions) {
      int64_t in_box = 1;
      const bool has_box = upto(3) > 0;
      for (const int64_t size : shape) {
        const int64_t offset = has_box ? upto(size - 1) : 0;
        const int64_t part = has_box ? 1 + upto(size - offset - 1) : size;
        if (has_box) {
          region.box_offset.push_back(offset);
          region.box_size.push_back(part);
        }
        in_box *= part;
      }
      region.begin = upto(in_box);
      region.end = region.begin + upto(in_box - region.begin);
    }
    const std::vector<int64_t> one = elements_of(regions[0], shape);
    const std::vector<int64_t> other = elements_of(regions[1], shape);
    std::vector<std::pair<int64_t, int64_t>> expected; // (in one, in other)
    for (size_t i = 0; i < one.size(); ++i) {
      if (const auto at = std::find(other.begin(), other.end(), one[i]); at != other.end()) {
        expected.emplace_back(i, at - other.begin());
      }
    }
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const CommonRun& run : common_runs(regions[0], regions[1], shape)) {
      for (int64_t i = 0; i < run.numel; ++i) {
        found.emplace_back(run.in_one + i, run.in_other + i);
      }
    }
    ASSERT_EQ(found, expected) << "trial " << trial;
  }
}

// With a look at every row for every row these would be 10^12 steps.
TEST(RegionTest, TheWorkIsThatOfTheRowsHoweverManyThereAre) {
  constexpr int64_t kRows = 1 << 20;
  const std::vector<int64_t> shape = {kRows, 4};
  const Region left = {{0, 0}, {kRows, 2}, 0, 2 * kRows};
  const Region right = {{0, 2}, {kRows, 2}, 0, 2 * kRows};
  const Region middle = {{0, 1}, {kRows, 2}, 0, 2 * kRows};
  EXPECT_EQ(common_runs(left, middle, shape).size(), static_cast<size_t>(kRows));
  EXPECT_THAT(common_runs(left, right, shape), IsEmpty());
  int64_t found = 0;
  for (const auto& run : runs(middle, shape, 0, 4 * kRows)) {
    found += std::ssize(runs(left, shape, run.in_tensor, run.in_tensor + run.numel)) +
             std::ssize(runs(right, shape, run.in_tensor, run.in_tensor + run.numel));
  }
  EXPECT_EQ(found, 2 * kRows);
}

TEST(RegionTest, WholeTrailingDimsAreOneRun) {
  // Rows 2..4 of [8, 3, 5] are one stretch, however many dims follow.
  EXPECT_EQ(runs({{2, 0, 0}, {2, 3, 5}, 0, 30}, {8, 3, 5}, 0, 120).size(), 1U);
  EXPECT_EQ(runs({{0, 1, 0}, {8, 1, 5}, 0, 40}, {8, 3, 5}, 0, 120).size(), 8U);
}

TEST(RegionTest, CoverageEqualsCountingEveryElement) {
  std::mt19937 random(11);
  const auto upto = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  int num_right = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    // Start from a right cover: columns split in two boxes, each box cut in ranges; then maybe spoil one.
    const std::vector<int64_t> shape{1 + upto(4), 2 + upto(4)};
    const int64_t cut = 1 + upto(shape[1] - 2);
    std::vector<Region> regions;
    for (const auto& [from, to] : {std::pair<int64_t, int64_t>{0, cut}, {cut, shape[1]}}) {
      const int64_t in_box = shape[0] * (to - from);
      const int64_t middle = upto(in_box);
      regions.push_back({{0, from}, {shape[0], to - from}, 0, middle});
      regions.push_back({{0, from}, {shape[0], to - from}, middle, in_box});
    }
    if (upto(1) == 0) {
      Region& victim = regions[static_cast<size_t>(upto(3))];
      switch (upto(3)) {
        case 0:
          victim.end = victim.begin + upto(victim.end - victim.begin);
          break;
        case 1:
          victim.begin = upto(victim.end);
          break;
        case 2:
          regions.push_back({{}, {}, 0, upto(3)});
          break;
        default:
          victim.box_offset[1] = 0;
      }
    }
    std::vector<int> count(static_cast<size_t>(shape[0] * shape[1]));
    bool is_valid = true;
    for (const Region& region : regions) {
      is_valid = is_valid && region_problem(region, shape).empty();
      if (is_valid) {
        for (const int64_t element : elements_of(region, shape)) {
          ++count[static_cast<size_t>(element)];
        }
      }
    }
    if (!is_valid) {
      continue;
    }
    const bool is_right = std::all_of(count.begin(), count.end(), [](int n) { return n == 1; });
    num_right += is_right ? 1 : 0;
    // Two different boxes may only be refused although right when one is empty of elements; ranges above avoid it.
    const std::string problem = coverage_problem(regions, shape);
    if (is_right) {
      ASSERT_TRUE(problem.empty() || problem.find("overlap") != std::string::npos) << problem;
    } else {
      ASSERT_THAT(problem, testing::Not(IsEmpty())) << "trial " << trial;
    }
  }
  EXPECT_GT(num_right, 1000);
}

TEST(RegionTest, SaysWhichElementsAreMissingOrTwice) {
  EXPECT_THAT(coverage_problem({{{}, {}, 0, 4}, {{}, {}, 6, 10}}, {10}), HasSubstr("lacks elements [4, 6)"));
  EXPECT_THAT(coverage_problem({{{}, {}, 0, 6}, {{}, {}, 4, 10}}, {10}), HasSubstr("has elements [4, 6) twice"));
  EXPECT_THAT(coverage_problem({}, {10}), HasSubstr("lacks 10 of its 10"));
  EXPECT_THAT(coverage_problem({{{0, 0}, {2, 3}, 0, 6}}, {2, 5}), HasSubstr("lacks 4 of its 10"));
  EXPECT_THAT(coverage_problem({{{0, 0}, {2, 3}, 0, 6}, {{0, 2}, {2, 3}, 0, 6}}, {2, 5}), HasSubstr("overlap"));
  EXPECT_EQ(coverage_problem({{{0, 0}, {2, 3}, 0, 6}, {{0, 3}, {2, 2}, 0, 4}}, {2, 5}), "");
  EXPECT_EQ(coverage_problem({{{}, {}, 0, 1}}, {}), "");
  EXPECT_EQ(coverage_problem({}, {3, 0}), "");
}

TEST(RegionTest, RefusesWhatLiesOutside) {
  EXPECT_THAT(region_problem({{}, {}, 0, 11}, {10}), HasSubstr("outside"));
  EXPECT_THAT(region_problem({{}, {}, -1, 2}, {10}), HasSubstr("outside"));
  EXPECT_THAT(region_problem({{}, {}, 3, 2}, {10}), HasSubstr("outside"));
  EXPECT_THAT(region_problem({{8}, {3}, 0, 3}, {10}), HasSubstr("outside"));
  EXPECT_THAT(region_problem({{INT64_MAX}, {3}, 0, 3}, {10}), HasSubstr("outside"));
  EXPECT_THAT(region_problem({{0, 0}, {3, 1}, 0, 3}, {10}), HasSubstr("dims"));
  EXPECT_THAT(region_problem({{}, {}, 0, 1}, {INT64_MAX, 2}), HasSubstr("too large"));
  EXPECT_THAT(region_problem({{}, {}, 0, 1}, {-4}), HasSubstr("negative"));
}

TEST(RegionTest, NumelOverflowIsNoticedBehindAZero) {
  EXPECT_EQ(checked_numel({0, INT64_MAX, 2}), std::nullopt);
  EXPECT_EQ(checked_numel({0, 5}), 0);
  EXPECT_EQ(checked_numel({}), 1);
}

} // namespace
} // namespace trireme::checkpoint
