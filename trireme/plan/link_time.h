#pragma once

#include <trireme/plan/cluster.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::plan {

/// Ranks first, first + stride, ...: a group of an axis of the mesh. In the mesh [pipe, data, context, tensor] with the
/// last axis adjacent, the stride of an axis is the product of the sizes after it. All groups of the axis communicate
/// at the same time.
struct AxisGroup {
  int64_t ranks = 1;
  int64_t stride = 1;
};

/// Seconds of an all-gather that leaves `bytes` on every rank, or of a reduce-scatter of as many. An all-reduce takes
/// Cluster::all_reduce_gathers of these.
///
/// Rings over n ranks: bytes (1 - 1/n) pass every link of a ring. In a unit with m ranks each one has a ring that
/// enters the unit over its link, so each link carries 1/m. Levels work in chunks at the same time, so the slowest
/// counts. Every level with g units adds its latency log2(g) times. In a flat ring all bytes pass every link.
double gather_seconds(const Cluster& cluster, const AxisGroup& group, double bytes);

/// Seconds of an all-to-all in which every rank holds `bytes` before and after.
double exchange_seconds(const Cluster& cluster, const AxisGroup& group, double bytes);

/// Seconds of a message between ranks `first + i` and `second + i`, for the worst i in [0, count).
double message_seconds(const Cluster& cluster, int64_t first, int64_t second, int64_t count, double bytes);

/// Seconds of a message from every rank of the group to the next one in the ring.
double ring_message_seconds(const Cluster& cluster, const AxisGroup& group, double bytes);

/// Bytes on the links of a level.
struct LevelBytes {
  std::string level;
  int64_t bytes = 0;
};

/// Divides `sent` bytes that a rank sends in rings over the group among its links, from inside a host outwards. If
/// ranks share rings evenly the sum is `sent`.
std::vector<LevelBytes> ring_bytes(const Cluster& cluster, const AxisGroup& group, int64_t sent);

/// Name of the level that connects the group, such as "inside_host". Empty for a group of one.
std::string level_name(const Cluster& cluster, const AxisGroup& group);

} // namespace trireme::plan
