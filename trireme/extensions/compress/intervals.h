#pragma once

#include <trireme/optim/options.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace trireme::compress {

/// The schedule of 0/1 Adam: which steps update the second moment, and which average after local steps. Steps count
/// from 1. Source: Lu et al. 2022, arXiv:2202.06009, section 4 (T_v and T_u), with the rules of DeepSpeed's
/// ZeroOneAdam.
class Intervals {
 public:
  explicit Intervals(const optim::ZeroOneAdamOptions& options) : options_(options) {}

  bool is_frozen_in(int64_t step) const { return step > options_.var_freeze_step; }
  /// True if `step` updates the second moment; the first updates of a run are in consecutive steps.
  bool moves_in(int64_t step) const { return !is_frozen_in(step) && (moves_ == 0 || step % interval_ == 0); }
  /// Counts an update of the second moment. The interval doubles after every `update_scaler` updates.
  void moved();
  /// Number of updates so far.
  int64_t moves() const { return moves_; }
  int64_t interval() const { return interval_; }
  bool meet_in(int64_t step) const { return options_.meet_in(step); }
  /// Returns the first averaging step at or after `step`.
  int64_t next_meeting(int64_t step) const;

  /// Returns the state for checkpoints.
  nlohmann::json state() const;
  /// A null state belongs to a run of another kind, in which each of `steps` steps updated the second moment.
  void load_state(const nlohmann::json& state, int64_t steps);

 private:
  optim::ZeroOneAdamOptions options_;
  int64_t interval_ = 1;
  int64_t counter_ = 0; // updates since the interval has changed
  int64_t moves_ = 0;
};

} // namespace trireme::compress
