#pragma once

#include <trireme/comm/group.h>
#include <trireme/monitor/straggler.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::engine {

/// Lets the replicas of one stage compare where their time goes, and warns when one keeps the others waiting.
///
/// Every 8 steps one all_gather of 48 numbers a rank, which nobody waits for: it is read a step later. The last 16
/// steps count; the same rank is named again after 48 steps at the earliest.
class Arrivals {
 public:
  explicit Arrivals(comm::Group group);

  /// After every optimizer step, on every rank of the group. Ranks exchange only where `may_travel`, the same on all of
  /// them.
  void step(int64_t number, const monitor::StepShare& share, bool may_travel = true);

  /// As of the last comparison; the rank is one of the world.
  const std::optional<monitor::Straggler>& straggler() const {
    return straggler_;
  }

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
