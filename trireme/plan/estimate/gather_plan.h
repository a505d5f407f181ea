#pragma once

#include <trireme/plan/estimate/run.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <cstdint>
#include <vector>

namespace trireme::estimate {

/// What a rank gathers in one step of ZeRO stage 3 when the order of units is known from the step before: every unit
/// for its forward and for its backward, less what is still there (zero::ParameterCoordinator).
struct GatherPlan {
  /// How often, by unit (units_of()).
  std::vector<int64_t> times;
  /// Elements of parameters that are whole at a time, at most.
  int64_t most_live = 0;

  /// Elements of a step, counting those of this layout: layout_of(run, stage), or one of its two parts.
  int64_t elements(const bucket::FlatLayout& layout) const;
};

/// Works it out for a rank of `stage`. Cost: proportional to the phases of its program, not to what they repeat.
GatherPlan gather_plan(const Run& run, int64_t stage);
/// The same; `layout` is layout_of(run, stage).
GatherPlan gather_plan(const Run& run, int64_t stage, const bucket::FlatLayout& layout);

} // namespace trireme::estimate
