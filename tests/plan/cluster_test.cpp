#include <trireme/base/error.h>
#include <trireme/plan/cluster.h>

#include <gmock/gmock.h>

namespace trireme::plan {
namespace {

using testing::HasSubstr;

const char* const kText = R"({
  "name": "two racks", "hosts": 8, "ranks_per_host": 4, "overlap": 0.5,
  "rank": {"memory_bytes": 16e9, "flops": 1e12, "achieved": [[100, 0.2], [10000, 0.6]], "attention_achieved": 0.3, "memory_bandwidth": 1e11},
  "links": {"inside_host": {"bandwidth": 1e10, "latency": 1e-6}, "host_groups": [{"name": "rack", "hosts": 4, "bandwidth": 2e9}],
            "between_hosts": {"bandwidth": 1e9, "latency": 5e-6}}
})";

std::string refusal(const std::string& from, const std::string& to) {
  std::string text = kText;
  EXPECT_NE(text.find(from), std::string::npos) << from;
  text.replace(text.find(from), from.size(), to);
  try {
    parse_cluster(text, "cluster.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ClusterTest, IsRead) {
  const Cluster cluster = parse_cluster(kText, "cluster.json");
  EXPECT_EQ(cluster.ranks(), 32);
  EXPECT_EQ(cluster.processors, 4) << "every rank has its own";
  EXPECT_EQ(cluster.pass_bandwidth, cluster.memory_bandwidth);
  ASSERT_EQ(cluster.levels.size(), 3u);
  EXPECT_EQ(cluster.levels[0].ranks, 4);
  EXPECT_EQ(cluster.levels[1].ranks, 16);
  EXPECT_EQ(cluster.levels[2].ranks, 32);
  EXPECT_EQ(cluster.levels[1].latency, 0);
  EXPECT_FALSE(cluster.on_host);
}

TEST(ClusterTest, SpeedLiesBetweenThePoints) {
  const SpeedCurve& curve = parse_cluster(kText, "cluster.json").products;
  EXPECT_DOUBLE_EQ(curve.at(10), 2e11);
  EXPECT_DOUBLE_EQ(curve.at(100), 2e11);
  EXPECT_NEAR(curve.at(1000), 4e11, 1) << "in the middle of the logarithm";
  EXPECT_DOUBLE_EQ(curve.at(1e6), 6e11);
}

TEST(ClusterTest, WhatIsWrittenIsRead) {
  const std::string written = write_cluster(parse_cluster(kText, "cluster.json"));
  const Cluster again = parse_cluster(written, "again.json");
  EXPECT_EQ(write_cluster(again), written);
  EXPECT_EQ(again.levels.size(), 3u);
  EXPECT_EQ(again.all_reduce_gathers, 2);
  std::string shared = kText;
  shared.insert(shared.find("\"links\""), "\"all_reduce_gathers\": 1.25, ");
  EXPECT_EQ(parse_cluster(write_cluster(parse_cluster(shared, "cluster.json")), "again.json").all_reduce_gathers, 1.25);
  EXPECT_EQ(again.products.at(1000), parse_cluster(kText, "cluster.json").products.at(1000));
}

TEST(ClusterTest, HostAndDiskAreRead) {
  std::string text = kText;
  EXPECT_EQ(parse_cluster(text, "cluster.json").host.memory_bytes, 0);
  EXPECT_EQ(parse_cluster(text, "cluster.json").disk.bytes, 0);
  const std::string host =
      R"("host": {"memory_bytes": 256e9, "reserved_bytes": 4e9, "memory_bandwidth": 1e11, "link_bandwidth": 12e9}, )";
  const std::string disk = R"("disk": {"bytes": 2e12, "read_bandwidth": 3e9, "write_bandwidth": 2e9}, )";
  const auto with = [&](const std::string& more) {
    std::string out = kText;
    return out.insert(out.find("\"links\""), more);
  };
  const Cluster cluster = parse_cluster(with(host + disk), "cluster.json");
  EXPECT_EQ(cluster.host.memory_bytes, 256'000'000'000);
  EXPECT_EQ(cluster.host.reserved_bytes, 4'000'000'000);
  EXPECT_EQ(cluster.host.memory_bandwidth, 1e11);
  EXPECT_EQ(cluster.host.link_bandwidth, 12e9);
  EXPECT_EQ(cluster.disk.bytes, 2'000'000'000'000);
  EXPECT_EQ(cluster.disk.read_bandwidth, 3e9);
  EXPECT_EQ(cluster.disk.write_bandwidth, 2e9);
  const Cluster again = parse_cluster(write_cluster(cluster), "again.json");
  EXPECT_EQ(std::tuple(again.host.memory_bytes, again.host.reserved_bytes, again.host.memory_bandwidth,
                       again.host.link_bandwidth),
            std::tuple(cluster.host.memory_bytes, cluster.host.reserved_bytes, cluster.host.memory_bandwidth,
                       cluster.host.link_bandwidth));
  EXPECT_EQ(std::tuple(again.disk.bytes, again.disk.read_bandwidth, again.disk.write_bandwidth),
            std::tuple(cluster.disk.bytes, cluster.disk.read_bandwidth, cluster.disk.write_bandwidth));
  const auto refused = [&](const std::string& text) -> std::string {
    try {
      parse_cluster(text, "cluster.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused(with(disk)), HasSubstr("disk: files of a GPU are read and stepped in host memory"));
  EXPECT_THAT(refused(with(R"("host": {"memory_bytes": 1e9, "memory_bandwidth": 0, "link_bandwidth": 1}, )")),
              HasSubstr("host.memory_bandwidth: must be from 1 to 1e+21 a second, found 0"));
  std::string on_host = with(host);
  on_host.insert(on_host.find("\"memory_bytes\""), R"("device": "host", )");
  EXPECT_THAT(refused(on_host), HasSubstr("host: ranks compute on the host"));
  on_host = with(disk);
  on_host.insert(on_host.find("\"memory_bytes\""), R"("device": "host", )");
  EXPECT_EQ(parse_cluster(on_host, "cluster.json").disk.read_bandwidth, 3e9);
}

TEST(ClusterTest, MistakesAreNamedWithTheirPlace) {
  EXPECT_THAT(refusal("\"hosts\": 8", "\"hosts\": 0"), HasSubstr("cluster.json:2:33: hosts: must be from 1"));
  EXPECT_THAT(refusal("16e9", "-1"), HasSubstr("rank.memory_bytes: must be from 1 to 1e+18 bytes, found -1"));
  EXPECT_THAT(refusal("\"achieved\": [[100, 0.2], [10000, 0.6]]", "\"achieved\": 1.5"),
              HasSubstr("rank.achieved: must be from 1e-06 to 1, a fraction of \"flops\", found 1.5"));
  EXPECT_THAT(refusal("[10000, 0.6]", "[50, 0.6]"), HasSubstr("sizes must be above 0 and grow, found 50"));
  EXPECT_THAT(refusal("[100, 0.2]", "[100]"), HasSubstr("must be [size, fraction]"));
  EXPECT_THAT(refusal("\"hosts\": 4", "\"hosts\": 3"),
              HasSubstr("3 must be a multiple of 1, larger, and divide the 8 hosts"));
  EXPECT_THAT(refusal("\"overlap\": 0.5", "\"overlap\": 2"),
              HasSubstr("overlap: must be from 0 to 1, a share, found 2"));
  EXPECT_THAT(refusal("\"flops\": 1e12", "\"flop\": 1e12"), HasSubstr("\"flops\" is missing"));
  EXPECT_THAT(refusal("\"latency\": 1e-6", "\"latencies\": 1e-6"), HasSubstr("Did you mean \"latency\"?"));
  EXPECT_THAT(refusal("\"inside_host\": {\"bandwidth\": 1e10, \"latency\": 1e-6}, ", ""),
              HasSubstr("\"inside_host\" is missing"));
  EXPECT_THAT(refusal("\"bandwidth\": 1e10", "\"bandwidth\": 0"),
              HasSubstr("links.inside_host.bandwidth: must be from 1 to"));
  EXPECT_THAT(refusal("\"bandwidth\": 1e9", "\"bandwidth\": \"1 GB\""), HasSubstr("links.between_hosts.bandwidth: "));
  EXPECT_THAT(refusal("\"hosts\": 8", "\"all_reduce_gathers\": 3, \"hosts\": 8"),
              HasSubstr("all_reduce_gathers: must be from 0.1 to 2"));
  EXPECT_THAT(refusal("16e9", "1e300"), HasSubstr("rank.memory_bytes: must be from 1 to 1e+18 bytes, found 1e+300"));
  EXPECT_THAT(refusal("\"latency\": 5e-6", "\"latency\": 1e300"),
              HasSubstr("links.between_hosts.latency: must be from 0 to 1e+06 seconds"));
  EXPECT_THAT(refusal("\"bandwidth\": 2e9", "\"bandwidth\": 1e-300"), HasSubstr("bandwidth: must be from 1 to"));
  EXPECT_THAT(refusal("\"hosts\": 8", "\"hots\": 8"), HasSubstr("Did you mean \"hosts\"?"));
  EXPECT_THAT(refusal("\"hosts\": 8", "\"hosts\": 1e6"), HasSubstr("4000000 ranks are more than 1048576"));
  EXPECT_THAT(refusal("\"hosts\": 8", "\"hosts\": 1000000000000"), HasSubstr("hosts: must be from 1 to 1048576"));
  EXPECT_THAT(refusal("\"memory_bandwidth\"", "\"device\": \"gpu\", \"memory_bandwidth\""),
              HasSubstr("\"gpu\" is not one of the choices"));
}

} // namespace
} // namespace trireme::plan
