#pragma once

#include <trireme/optim/options.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace trireme::compress {

/// When 0/1 Adam moves the second moment, and when ranks that step by themselves meet. Steps count from 1.
/// Source: Lu et al. 2022, arXiv:2202.06009, section 4 (T_v and T_u), with the rules of DeepSpeed's ZeroOneAdam.
class Intervals {
 public:
  explicit Intervals(const optim::ZeroOneAdamOptions& options) : options_(options) {}

  bool is_frozen_in(int64_t step) const {
    return step > options_.var_freeze_step;
  }
  /// Whether `step` moves the second moment; the first moves of a run are of consecutive steps.
  bool moves_in(int64_t step) const {
    return !is_frozen_in(step) && (moves_ == 0 || step % interval_ == 0);
  }
  /// It has moved it. After every `update_scaler` moves the interval doubles.
  void moved();
  /// Moves so far.
  int64_t moves() const {
    return moves_;
  }
  int64_t interval() const {
    return interval_;
  }
  bool meet_in(int64_t step) const {
    return options_.meet_in(step);
  }
  /// The first step from `step` on in which they meet.
  int64_t next_meeting(int64_t step) const;

  /// For checkpoints.
  nlohmann::json state() const;
  /// A null: those of a run of another kind, whose every step has moved the second moment, after `steps` of them.
  void load_state(const nlohmann::json& state, int64_t steps);

 private:
  optim::ZeroOneAdamOptions options_;
  int64_t interval_ = 1;
  int64_t counter_ = 0; // moves since it has changed
  int64_t moves_ = 0;
};

} // namespace trireme::compress
