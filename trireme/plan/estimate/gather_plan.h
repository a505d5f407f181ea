#pragma once

#include <trireme/plan/estimate/run.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::estimate {

/// Units that a rank gathers per step of ZeRO stage 3 once the order of units is known: every unit for its forward and
/// its backward, except those that are still gathered (zero::ParameterCoordinator).
struct GatherPlan {
  /// Gathers per step, by unit (units_of()).
  std::vector<int64_t> times;
  /// Largest number of parameter elements gathered at a time.
  int64_t most_live = 0;

  /// Elements gathered per step, with the sizes of this layout: layout_of(run, stage), one of its two parts, or
  /// frozen_layout_of(run, stage).
  int64_t elements(const bucket::FlatLayout& layout) const;
};

/// Computes the plan of a rank of `stage`, with layout_of(run, stage) and frozen_layout_of(run, stage). Cost:
/// proportional to the phases of its program, not to their repetitions.
GatherPlan gather_plan(const Run& run, int64_t stage, const bucket::FlatLayout& trained,
                       const bucket::FlatLayout& frozen = {});

} // namespace trireme::estimate
