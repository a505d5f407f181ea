#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace trireme::compress {

/// When 0/1 Adam moves the second moment, and when ranks that step by themselves meet. Steps count from 1.
/// Source: Lu et al. 2022, arXiv:2202.06009, section 4 (T_v and T_u), with the rules of DeepSpeed's ZeroOneAdam.
class Intervals {
 public:
  Intervals(int64_t freeze_step, int64_t update_scaler, int64_t local_scaler, int64_t local_clipper)
      : freeze_step_(freeze_step), update_scaler_(update_scaler), local_scaler_(local_scaler), local_clipper_(local_clipper) {}

  bool is_frozen_in(int64_t step) const {
    return step > freeze_step_;
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
  /// Steps between two meetings at `step`, a frozen one: 1, doubled after every `local_scaler` frozen steps up to `local_clipper`.
  int64_t local_interval(int64_t step) const;
  bool meet_in(int64_t step) const {
    return step % local_interval(step) == 0;
  }
  /// The first step from `step` on in which they meet.
  int64_t next_meeting(int64_t step) const;

  /// For checkpoints.
  nlohmann::json state() const;
  /// A null: those of a run of another kind, whose every step has moved the second moment, after `steps` of them.
  void load_state(const nlohmann::json& state, int64_t steps);

 private:
  int64_t freeze_step_;
  int64_t update_scaler_;
  int64_t local_scaler_;
  int64_t local_clipper_;
  int64_t interval_ = 1;
  int64_t counter_ = 0; // moves since it has changed
  int64_t moves_ = 0;
};

} // namespace trireme::compress
