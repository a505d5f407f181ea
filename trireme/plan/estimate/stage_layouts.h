#pragma once

#include <trireme/plan/estimate/gather_plan.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace trireme::estimate {

/// Layouts and plans that several formulas need and that take long to compute: computed on first use and kept. The run
/// must outlive this object and not change.
class StageLayouts {
 public:
  explicit StageLayouts(const Run& run) : run_(run) {}

  const Run& run() const { return run_; }
  /// layout_of(run, stage), and its two parts.
  const bucket::FlatLayout& of(int64_t stage) const;
  const bucket::FlatLayout& of(int64_t stage, bool whole) const;
  /// frozen_layout_of(run, stage).
  const bucket::FlatLayout& frozen(int64_t stage) const;
  /// gather_plan(run, stage).
  const GatherPlan& gathers(int64_t stage) const;

 private:
  const Run& run_;
  mutable std::map<std::pair<int64_t, std::optional<bool>>, bucket::FlatLayout> layouts_;
  mutable std::map<int64_t, bucket::FlatLayout> frozen_;
  mutable std::map<int64_t, GatherPlan> gathers_;
};

} // namespace trireme::estimate
