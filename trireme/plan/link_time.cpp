#include <trireme/plan/link_time.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace trireme::plan {
namespace {

// The least number of ranks of a group that share a unit, in the worst group of the axis. Example: groups of 6 adjacent
// ranks in units of 8 begin at 0, 6, 12; two ranks of the second group are in the first unit.
int64_t members(const AxisGroup& group, int64_t unit) {
  return std::clamp<int64_t>(std::gcd(unit, group.ranks * group.stride) / group.stride, 1, group.ranks);
}

double steps(int64_t units) {
  return static_cast<double>(std::bit_width(static_cast<uint64_t>(units - 1)));
}

// Calls visit(level, ranks of a unit below, units) for every level that the group crosses.
template <typename Visit>
void for_each_level(const Cluster& cluster, const AxisGroup& group, const Visit& visit) {
  int64_t below = 1;
  for (const Level& level : cluster.levels) {
    const int64_t here = &level == &cluster.levels.back() ? group.ranks : members(group, level.ranks);
    const int64_t units = (here + below - 1) / below;
    if (units > 1) {
      visit(level, below, units);
    }
    below = here;
  }
}

// Bytes of an all-gather of `bytes` on a rank's link of a level. Collectives are rings, as NCCL's across hosts: all
// bytes except one rank's pass each link of a ring. Each rank of a unit has its own ring.
double arriving(const Cluster& cluster, const AxisGroup& group, double bytes, int64_t below, int64_t units) {
  const double passing = bytes * (1 - 1 / static_cast<double>(group.ranks));
  if (!cluster.hierarchical) {
    return passing;
  }
  if (below > 1) {
    return passing / static_cast<double>(below);
  }
  return bytes * (1 - 1 / static_cast<double>(units)); // inside: what each ring does not bring from outside
}

// The first level with both ranks in one unit.
const Level& level_between(const Cluster& cluster, int64_t first, int64_t second) {
  for (const Level& level : cluster.levels) {
    if (first / level.ranks == second / level.ranks) {
      return level;
    }
  }
  return cluster.levels.back();
}

} // namespace

double gather_seconds(const Cluster& cluster, const AxisGroup& group, double bytes) {
  double slowest = 0;
  double latency = 0;
  for_each_level(cluster, group, [&](const Level& level, int64_t below, int64_t units) {
    slowest = std::max(slowest, arriving(cluster, group, bytes, below, units) / level.bandwidth);
    latency += steps(units) * level.latency;
  });
  return slowest + latency;
}

double exchange_seconds(const Cluster& cluster, const AxisGroup& group, double bytes) {
  double slowest = 0;
  double latency = 0;
  for_each_level(cluster, group, [&](const Level& level, int64_t below, int64_t units) {
    (void)below; // every rank exchanges with every other one
    slowest = std::max(slowest, bytes * (1 - 1 / static_cast<double>(units)) / level.bandwidth);
    latency += steps(units) * level.latency;
  });
  return slowest + latency;
}

double message_seconds(const Cluster& cluster, int64_t first, int64_t second, int64_t count, double bytes) {
  double slowest = 0;
  for (int64_t i = 0; i < count && !cluster.levels.empty(); ++i) {
    const Level& level = level_between(cluster, first + i, second + i);
    slowest = std::max(slowest, level.latency + bytes / level.bandwidth);
  }
  return slowest;
}

double ring_message_seconds(const Cluster& cluster, const AxisGroup& group, double bytes) {
  double slowest = 0;
  for_each_level(cluster, group, [&](const Level& level, int64_t, int64_t) {
    slowest = std::max(slowest, level.latency + bytes / level.bandwidth);
  });
  return slowest;
}

std::vector<LevelBytes> ring_bytes(const Cluster& cluster, const AxisGroup& group, int64_t sent) {
  std::vector<LevelBytes> out;
  for_each_level(cluster, group, [&](const Level& level, int64_t below, int64_t) {
    const int64_t outwards = cluster.hierarchical ? sent / below : sent; // the next level carries its share of them
    if (!out.empty()) {
      out.back().bytes -= outwards;
    }
    out.push_back({level.name, outwards});
  });
  std::erase_if(out, [](const LevelBytes& level) { return level.bytes == 0; });
  return out;
}

std::string level_name(const Cluster& cluster, const AxisGroup& group) {
  std::string name;
  for_each_level(cluster, group, [&](const Level& level, int64_t, int64_t) { name = level.name; });
  return name;
}

} // namespace trireme::plan
