#pragma once

#include <trireme/engine/engine.h>
#include <trireme/engine/stopwatch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace trireme::engine {

/// Measures the phases of a step, and counts the host's waits for the GPU.
class StepClock {
 public:
  /// `exposed`: seconds of communication so far that nothing has hidden.
  explicit StepClock(std::function<double()> exposed) : exposed_(std::move(exposed)) {}

  /// Measures forward, backward and optimizer by the device, which the host runs ahead of. Call it once, before the
  /// first step.
  void measure_on(at::Device device);
  /// Begins a step, with the loading of its first micro-batch.
  void start();
  /// Ends a step. `schedule`: seconds that a pipeline's schedule waited for messages.
  void end(double schedule);
  /// Drops the loading time of a step that was dropped.
  void drop() {
    loading_ = 0;
    if (on_device_) {
      on_device_->forward.drop();
      on_device_->backward.drop();
      on_device_->optimizer.drop();
    }
  }

  /// Each runs during the lifetime of the result.
  Stopwatch data() { return Stopwatch(loading_); }
  Stopwatch forward() { return on_device_ ? Stopwatch(on_device_->forward) : on_host(running_.forward); }
  Stopwatch backward() { return on_device_ ? Stopwatch(on_device_->backward) : on_host(running_.backward); }
  Stopwatch optimizer() { return on_device_ ? Stopwatch(on_device_->optimizer) : on_host(running_.optimizer); }
  /// Waiting for the other ranks' losses and norms.
  Stopwatch agreement() { return Stopwatch(agreement_); }
  /// Sets the times that a pipeline's schedule has measured.
  void set_compute(double forward, double backward) { schedule_ = {forward, backward}; }

  /// Times of the last step that ended.
  const StepTimes& times() const { return times_; }
  /// How often the host waited for the GPU in the last step that ended.
  int64_t host_syncs() const { return host_syncs_; }

 private:
  struct OnDevice {
    explicit OnDevice(at::Device device) : forward(device), backward(device), optimizer(device) {}
    device::PhaseTimer forward;
    device::PhaseTimer backward;
    device::PhaseTimer optimizer;
  };
  double waiting() const { return exposed_() + agreement_; }
  Stopwatch on_host(double& sum) {
    return Stopwatch(sum, [this] { return waiting(); });
  }
  void read_device();

  std::function<double()> exposed_;
  StepTimes times_;
  StepTimes running_;
  std::optional<OnDevice> on_device_;
  std::optional<std::pair<double, double>> schedule_; // forward, backward
  int64_t waits_before_ = 0;
  int64_t host_syncs_ = 0;
  std::chrono::steady_clock::time_point start_;
  double waiting_before_ = 0;
  double agreement_ = 0;
  double loading_ = 0; // of the current step, or of the next one
};

} // namespace trireme::engine
