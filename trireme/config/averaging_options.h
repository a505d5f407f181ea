#pragma once

#include <cstdint>

namespace trireme::parallel {

/// When and how replicas that step by themselves become one model again.
struct AveragingOptions {
  /// What is done with the mean of the replicas. none: it is the model (Stich 2018, arXiv:1805.09767). slowmo: SlowMo's
  /// slow momentum (Wang et al. 2019, arXiv:1910.00643). nesterov: SGD with Nesterov's momentum on the way that the
  /// mean has come (DiLoCo, Douillard et al. 2023, arXiv:2311.08105).
  enum class Outer { none, slowmo, nesterov };
  /// What becomes of the optimizer states at a meeting: SlowMo's three strategies for buffers.
  enum class States { maintain, average, reset };

  /// Replicas meet after each step whose number divides by this; 0: they do not step by themselves, gradients are
  /// summed in every step.
  int64_t every = 0;
  Outer outer = Outer::none;
  /// SlowMo's alpha; DiLoCo's outer learning rate.
  double outer_lr = 1;
  /// SlowMo's beta; DiLoCo's outer momentum.
  double outer_momentum = 0;
  States states = States::maintain;
  /// Up to this step the replicas step together, with the mean of their gradients (Lin et al. 2020, arXiv:1808.07217,
  /// post-local SGD).
  int64_t start_step = 0;
  /// Replicas may be lost and come: who is there at a meeting takes part in it. Each is a process in a world of its
  /// own; see elastic_averaging_sync.h.
  bool elastic = false;

  /// DiLoCo's.
  static constexpr double kNesterovLr = 0.7;
  static constexpr double kNesterovMomentum = 0.9;

  bool on() const {
    return every > 0;
  }
  static constexpr const char* name(Outer outer) {
    return outer == Outer::slowmo ? "slowmo" : outer == Outer::nesterov ? "nesterov" : "none";
  }
  static constexpr const char* name(States states) {
    return states == States::average ? "average" : states == States::reset ? "reset" : "maintain";
  }
};

} // namespace trireme::parallel
