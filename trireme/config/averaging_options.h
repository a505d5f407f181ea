#pragma once

#include <cstdint>

namespace trireme::parallel {

/// Options of parameter averaging: when replicas are averaged, and how.
struct AveragingOptions {
  /// The outer optimizer, applied to the replicas' mean.
  /// - none: the mean is the model (Stich 2018, arXiv:1805.09767).
  /// - slowmo: SlowMo's slow momentum (Wang et al. 2019, arXiv:1910.00643).
  /// - nesterov: SGD with Nesterov's momentum on the mean's change (DiLoCo, Douillard et al. 2023, arXiv:2311.08105).
  enum class Outer { none, slowmo, nesterov };
  /// Treatment of optimizer states in an averaging step: SlowMo's three strategies for buffers.
  enum class States { maintain, average, reset };

  /// Steps per round: replicas are averaged after each step whose number divides by this. 0: gradients are summed in
  /// every step.
  int64_t every = 0;
  Outer outer = Outer::none;
  /// SlowMo's alpha, or DiLoCo's outer learning rate.
  double outer_lr = 1;
  /// SlowMo's beta, or DiLoCo's outer momentum.
  double outer_momentum = 0;
  States states = States::maintain;
  /// Steps of ordinary data parallelism before the first round (post-local SGD: Lin et al. 2020, arXiv:1808.07217).
  int64_t start_step = 0;
  /// Allows replicas to be lost and to join: those present in an averaging step take part. Each is a process in its own
  /// world; see elastic_averaging_sync.h.
  bool elastic = false;

  /// DiLoCo's defaults.
  static constexpr double kNesterovLr = 0.7;
  static constexpr double kNesterovMomentum = 0.9;

  bool on() const { return every > 0; }
  static constexpr const char* name(Outer outer) {
    return outer == Outer::slowmo ? "slowmo" : outer == Outer::nesterov ? "nesterov" : "none";
  }
  static constexpr const char* name(States states) {
    return states == States::average ? "average" : states == States::reset ? "reset" : "maintain";
  }
};

} // namespace trireme::parallel
