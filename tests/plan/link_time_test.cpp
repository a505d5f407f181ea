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

// With tensor 8 inside, a data axis has one rank on each host; with tensor 2 it has four, each with a ring of its own.
// A ring passes on what comes from the same host, too.
TEST(LinkTimeTest, BetweenHosts) {
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {4, 8}, 800), 800.0 * 3 / 4 / 2);
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {16, 2}, 800), 800.0 * 15 / 16 / 4 / 2);
  EXPECT_DOUBLE_EQ(gather_seconds(cluster(), {32, 1}, 800), 800.0 * 7 / 8 / 10)
      << "eight links a host: the inside is slower";
  EXPECT_EQ(level_name(cluster(), {16, 2}), "between_hosts");
}

// Groups of 6 ranks begin at 0, 6, 12: some have two ranks on a host and four on the next.
TEST(LinkTimeTest, GroupsThatDoNotFitTheHostsCrossThem) {
  const Cluster uneven = hosts_of(3, 8, {10}, {2});
  EXPECT_EQ(level_name(uneven, {6, 1}), "between_hosts");
  EXPECT_EQ(level_name(uneven, {4, 1}), "inside_host");
  EXPECT_DOUBLE_EQ(gather_seconds(uneven, {6, 1}, 800), 800.0 * 5 / 6 / 2 / 2) << "as three pairs";
  EXPECT_DOUBLE_EQ(gather_seconds(uneven, {4, 6}, 800), gather_seconds(uneven, {4, 8}, 800)) << "one rank on each host";
}

TEST(LinkTimeTest, AFlatRingPassesEveryLink) {
  Cluster flat = cluster();
  flat.hierarchical = false;
  EXPECT_DOUBLE_EQ(gather_seconds(flat, {32, 1}, 800), 800.0 * 31 / 32 / 2);
  EXPECT_DOUBLE_EQ(gather_seconds(flat, {8, 1}, 800), 800.0 * 7 / 8 / 10);
  EXPECT_DOUBLE_EQ(gather_seconds(flat, {4, 8}, 800), gather_seconds(cluster(), {4, 8}, 800))
      << "one rank on each host";
}

// Of 1,600 bytes that a rank sends, seven members in eight have their next one on the same host; the eighth has the
// link out of it, and all eight take turns.
TEST(LinkTimeTest, LinksShareWhatRingsSend) {
  const auto shares = [](const Cluster& of, const AxisGroup& group) {
    std::vector<std::pair<std::string, int64_t>> out;
    for (const LevelBytes& level : ring_bytes(of, group, 1600)) {
      out.emplace_back(level.level, level.bytes);
    }
    return out;
  };
  using Shares = std::vector<std::pair<std::string, int64_t>>;
  EXPECT_EQ(shares(cluster(), {8, 1}), (Shares{{"inside_host", 1600}}));
  EXPECT_EQ(shares(cluster(), {16, 1}), (Shares{{"inside_host", 1400}, {"between_hosts", 200}}));
  EXPECT_EQ(shares(cluster(), {4, 8}), (Shares{{"between_hosts", 1600}}));
  Cluster racks = cluster();
  racks.levels.insert(racks.levels.begin() + 1, {"rack", 16, 4, 0});
  EXPECT_EQ(shares(racks, {32, 1}), (Shares{{"inside_host", 1400}, {"rack", 100}, {"between_hosts", 100}}));
  Cluster flat = cluster();
  flat.hierarchical = false;
  EXPECT_EQ(shares(flat, {16, 1}), (Shares{{"between_hosts", 1600}})) << "one rank of a host sends it all";
}

// Tensor 16 over two hosts is no faster than their links: each carries an eighth of all, and not only of what the other
// host has.
TEST(LinkTimeTest, TwoHostsAreNoFasterThanTheirLinks) {
  const Cluster hosts = hosts_of(2, 8, {230e9}, {24e9});
  const double bytes = 210e6;
  EXPECT_DOUBLE_EQ(gather_seconds(hosts, {16, 1}, bytes), bytes * 15 / 16 / (8 * 24e9));
  EXPECT_GT(gather_seconds(hosts, {16, 1}, bytes), 1.2 * gather_seconds(hosts, {8, 1}, bytes));
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
