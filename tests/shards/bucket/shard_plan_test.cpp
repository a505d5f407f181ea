#include <trireme/base/error.h>
#include <trireme/shards/bucket/shard_plan.h>

#include <gtest/gtest.h>

namespace trireme::bucket {
namespace {

FlatLayout layout_for(int64_t shards) {
  LayoutOptions options;
  options.shards = shards;
  options.first_bucket_bytes = 400;
  options.bucket_bytes = 2000;
  return FlatLayout({{"a", {50}}, {"b", {7, 11}}, {"c", {301}}, {"d", {3}}}, {3, 2, 1, 0}, options);
}

TEST(ShardPlanTest, RanksOwnEachElementOnce) {
  for (int size = 1; size <= 5; ++size) {
    const FlatLayout layout = layout_for(size);
    std::vector<int> owners(layout.numel());
    for (int rank = 0; rank < size; ++rank) {
      const ShardPlan plan(layout, rank, size, true);
      int64_t state = 0;
      for (size_t b = 0; b < layout.buckets().size(); ++b) {
        const Range range = plan.mine(b);
        state += range.numel();
        for (int64_t i = range.begin; i < range.end; ++i) {
          ++owners[i];
        }
      }
      EXPECT_EQ(state * size, layout.numel());
    }
    EXPECT_EQ(owners, std::vector<int>(layout.numel(), 1));
  }
}

TEST(ShardPlanTest, UnshardedOwnsEverything) {
  const FlatLayout layout = layout_for(1);
  const ShardPlan plan(layout, 2, 3, false);
  for (size_t b = 0; b < layout.buckets().size(); ++b) {
    EXPECT_EQ(plan.mine(b).numel(), layout.buckets()[b].numel());
  }
  EXPECT_FALSE(plan.sharded());
}

TEST(ShardPlanTest, RefusesALayoutMadeForOtherRanks) {
  EXPECT_THROW(ShardPlan(layout_for(1), 0, 7, true), Error);
}

} // namespace
} // namespace trireme::bucket
