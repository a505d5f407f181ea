#pragma once

#include <array>
#include <set>
#include <utility>

namespace trireme::comm {

/// A communicator of a group over NCCL, with its own stream: operations on one lane wait for each other, on two lanes
/// they do not.
///
/// Messages go up (rank to rank + 1, and last to first in a ring) or down, over an edge between two neighbours. Edges
/// alternate between lanes, so that a rank's receives from one side and sends to the other do not share a stream. The
/// edge between last and first closes a ring of odd length, which two colours cannot colour: then it has its own
/// lanes.
enum class Lane { collectives, up_even, up_odd, up_last, down_even, down_odd, down_last };
constexpr std::array<const char*, 7> kLanes = {"collectives", "up_even",  "up_odd",   "up_last",
                                               "down_even",   "down_odd", "down_last"};

/// The lane of messages from one rank to another in a group of `size`, the same on both ends. For neighbours, also
/// around the end, no other message of either rank uses it. For other pairs, the two directions do not share a
/// lane.
constexpr Lane lane_of(int from, int to, int size) {
  const int ahead = (to - from + size) % size;
  const bool up = 2 * ahead == size ? from < to : 2 * ahead < size;
  const int edge = up ? from : to;
  if (size % 2 == 1 && edge == size - 1) {
    return up ? Lane::up_last : Lane::down_last;
  }
  if (edge % 2 == 0) {
    return up ? Lane::up_even : Lane::down_even;
  }
  return up ? Lane::up_odd : Lane::down_odd;
}

/// The pairs (from, to) of a pipeline's messages, up and down between neighbours; in a ring last and first are
/// neighbours too.
inline std::set<std::pair<int, int>> neighbours(int size, bool ring) {
  std::set<std::pair<int, int>> pairs;
  for (int rank = 0; rank + 1 < size; ++rank) {
    pairs.insert({{rank, rank + 1}, {rank + 1, rank}});
  }
  if (ring && size > 1) {
    pairs.insert({{size - 1, 0}, {0, size - 1}});
  }
  return pairs;
}

/// The lanes that neighbours need, in one order on all ranks: 4, but 2 for two ranks or 6 for a ring of odd length.
inline std::set<Lane> message_lanes(int size, bool ring) {
  std::set<Lane> lanes;
  for (const auto& [from, to] : neighbours(size, ring)) {
    lanes.insert(lane_of(from, to, size));
  }
  return lanes;
}

} // namespace trireme::comm
