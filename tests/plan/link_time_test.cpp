#include "clusters.h"

#include <trireme/plan/link_time.h>

#include <gtest/gtest.h>

namespace trireme::plan {
namespace {

// 4 hosts with 8 ranks: 10 bytes a second inside, 2 between.
Cluster cluster(double latency = 0) {
  return hosts_of(4, 8, {10, latency}, {2, 2 * latency});
}

TEST(LinkTimeTest, InsideAHost) {
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {8, 1}, 800), 800.0 * 7 / 8 / 10);
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {2, 4}, 800), 800.0 / 2 / 10);
  EXPECT_EQ(gather_seconds(cluster(), {1, 1}, 800), 0);
  EXPECT_EQ(level_name(cluster(), {8, 1}), "inside_host");
  EXPECT_EQ(level_name(cluster(), {1, 8}), "");
}

// With tensor 8 inside, a data axis has one rank on each host; with tensor 2 it has four, whose links share what a host receives.
TEST(LinkTimeTest, BetweenHosts) {
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {4, 8}, 800), 800.0 * 3 / 4 / 2);
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {16, 2}, 800), 800.0 * 3 / 4 / 4 / 2);
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {32, 1}, 800), 800.0 * 7 / 8 / 10) << "eight links a host: the inside is slower";
  EXPECT_EQ(level_name(cluster(), {16, 2}), "between_hosts");
}

// Groups of 6 ranks begin at 0, 6, 12: some have two ranks on a host and four on the next.
TEST(LinkTimeTest, GroupsThatDoNotFitTheHostsCrossThem) {
  const Cluster uneven = hosts_of(3, 8, {10}, {2});
  EXPECT_EQ(level_name(uneven, {6, 1}), "between_hosts");
  EXPECT_EQ(level_name(uneven, {4, 1}), "inside_host");
  EXPECT_DOUBLE_EQ(gather_seconds(uneven, {6, 1}, 800), 800.0 * 2 / 3 / 2 / 2) << "as three pairs";
  EXPECT_DOUBLE_EQ(gather_seconds(uneven, {4, 6}, 800), gather_seconds(uneven, {4, 8}, 800)) << "one rank on each host";
}

TEST(LinkTimeTest, AFlatRingPassesEveryLink) {
  Cluster flat = cluster();
  flat.hierarchical = false;
  EXPECT_DOUBLE_EQ(gather_seconds(flat, {32, 1}, 800), 800.0 * 31 / 32 / 2);
  EXPECT_DOUBLE_EQ(gather_seconds(flat, {8, 1}, 800), 800.0 * 7 / 8 / 10);
  EXPECT_DOUBLE_EQ(gather_seconds(flat, {4, 8}, 800), gather_seconds(cluster(), {4, 8}, 800)) << "one rank on each host";
}

TEST(LinkTimeTest, LatencyGrowsWithTheLogarithm) {
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(1), {8, 1}, 0), 3);
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(1), {32, 1}, 0), 3 + 2 * 2);
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(1), {3, 8}, 0), 2 * 2);
}

TEST(LinkTimeTest, MessagesTakeTheWorstLink) {
  EXPECT_DOUBLE_EQ(message_seconds(cluster(1), 0, 4, 4, 20), 1 + 2);
  EXPECT_DOUBLE_EQ(message_seconds(cluster(1), 4, 8, 4, 20), 2 + 10);
  EXPECT_DOUBLE_EQ(message_seconds(cluster(1), 4, 6, 3, 20), 2 + 10) << "the third pair is apart";
  EXPECT_DOUBLE_EQ(ring_message_seconds(cluster(), {4, 2}, 20), 2);
  EXPECT_DOUBLE_EQ(ring_message_seconds(cluster(), {8, 2}, 20), 10);
}

TEST(LinkTimeTest, AnExchangePassesNothingOn) {
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster(), {8, 1}, 800), 800.0 * 7 / 8 / 10);
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster(), {16, 2}, 800), 800.0 * 3 / 4 / 2);
}

// Whole hosts are one step from each other: more members never make an all-gather slower by bandwidth than one member.
TEST(LinkTimeTest, MoreMembersOnAHostShareItsLinks) {
  EXPECT_LT(gather_seconds(cluster(), {16, 2}, 1e6), gather_seconds(cluster(), {4, 8}, 1e6));
}

} // namespace
} // namespace trireme::plan
