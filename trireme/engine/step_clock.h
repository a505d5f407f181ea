#pragma once

#include <trireme/engine/engine.h>
#include <trireme/engine/stopwatch.h>

#include <chrono>
#include <functional>
#include <utility>

namespace trireme::engine {

/// Measures where the time of a step goes.
class StepClock {
 public:
  /// `exposed`: seconds of communication that nothing has hidden so far.
  explicit StepClock(std::function<double()> exposed) : exposed_(std::move(exposed)) {}

  /// Begins a step, with the loading of its first micro-batch.
  void start();
  /// Ends a step. `schedule`: seconds that a pipeline's schedule waited for messages.
  void end(double schedule);
  /// Forgets what was loaded for a step that was dropped.
  void drop() {
    loading_ = 0;
  }

  /// Each runs while what it returns lives.
  Stopwatch data() {
    return Stopwatch(loading_);
  }
  Stopwatch forward() {
    return Stopwatch(running_.forward, [this] { return waiting(); });
  }
  Stopwatch backward() {
    return Stopwatch(running_.backward, [this] { return waiting(); });
  }
  Stopwatch optimizer() {
    return Stopwatch(running_.optimizer, [this] { return waiting(); });
  }
  /// Waiting for the other ranks' losses and norms.
  Stopwatch agreement() {
    return Stopwatch(agreement_);
  }
  /// What a pipeline's schedule has measured itself.
  void set_compute(double forward, double backward) {
    running_.forward = forward;
    running_.backward = backward;
  }

  /// The last step that ended.
  const StepTimes& times() const {
    return times_;
  }

 private:
  double waiting() const {
    return exposed_() + agreement_;
  }

  std::function<double()> exposed_;
  StepTimes times_;
  StepTimes running_;
  std::chrono::steady_clock::time_point start_;
  double waiting_before_ = 0;
  double agreement_ = 0;
  double loading_ = 0; // of the step that begins or runs
};

} // namespace trireme::engine
