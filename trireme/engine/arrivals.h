#pragma once

#include <trireme/comm/group.h>
#include <trireme/monitor/straggler.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::engine {

/// Compares among the replicas of a stage where the time of their steps goes, and warns of one that the others wait
/// for.
///
/// Every 8 steps, one all_gather of 48 numbers per rank, read a step later so that no rank waits for it. The last 16
/// steps count. The same rank is named again after 48 steps at the earliest.
class Arrivals {
 public:
  explicit Arrivals(comm::Group group);

  /// Call it after every optimizer step, on every rank of the group. Ranks exchange only if `may_travel`, which must be
  /// the same on all of them.
  void step(int64_t number, const monitor::StepShare& share, bool may_travel = true);

  /// Result of the last comparison; its rank is a rank of the world.
  const std::optional<monitor::Straggler>& straggler() const { return straggler_; }

 private:
  void exchange();
  void compare(int64_t step);

  comm::Group group_;
  std::vector<monitor::StepShare> mine_;
  std::vector<std::vector<monitor::StepShare>> history_; // by rank in the group
  at::Tensor sent_;
  at::Tensor received_;
  std::optional<comm::Work> travelling_;
  std::optional<monitor::Straggler> straggler_;
  int64_t warned_at_ = 0;
  int warned_of_ = -1;
};

} // namespace trireme::engine
