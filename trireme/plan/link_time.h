#pragma once

#include <trireme/plan/cluster.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::plan {

/// Ranks first, first + stride, ...: a group of an axis of the mesh. With the mesh [pipe, data, context, tensor] and
/// the last axis adjacent, the stride of an axis is the product of those behind it. All groups of the axis work at the
/// same time.
struct AxisGroup {
  int64_t ranks = 1;
  int64_t stride = 1;
};

/// Seconds of an all-gather that leaves `bytes` with every rank, or of a reduce-scatter of as many; an all-reduce takes
/// Cluster::all_reduce_gathers.
///
/// Rings over n ranks: bytes (1 - 1/n) pass every link of a ring. Of a unit with m members each has a ring that enters
/// the unit over its link, so that each link carries an m-th. The levels work at the same time in chunks, so the
/// slowest counts; every level with g units adds its latency log2(g) times. In a flat ring all bytes pass every link.
double gather_seconds(const Cluster& cluster, const AxisGroup& group, double bytes);

/// Seconds of an all-to-all in which every rank holds `bytes` before and after.
double exchange_seconds(const Cluster& cluster, const AxisGroup& group, double bytes);

/// Seconds of a message between ranks `first + i` and `second + i`, for the worst i in [0, count).
double message_seconds(const Cluster& cluster, int64_t first, int64_t second, int64_t count, double bytes);

/// Seconds of a message from every rank of the group to the next one, around the ring.
double ring_message_seconds(const Cluster& cluster, const AxisGroup& group, double bytes);

/// What links of a level carry.
struct LevelBytes {
  std::string level;
  int64_t bytes = 0;
};

/// How `sent` bytes that a rank sends in rings over the group are divided among its links, from inside a host outwards.
/// Where members share rings evenly: together they are `sent`.
std::vector<LevelBytes> ring_bytes(const Cluster& cluster, const AxisGroup& group, int64_t sent);

/// The level that connects the group: "inside_host", say. Empty for a group of one.
std::string level_name(const Cluster& cluster, const AxisGroup& group);

} // namespace trireme::plan
