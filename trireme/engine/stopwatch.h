#pragma once

#include <trireme/device/phase_timer.h>

#include <chrono>
#include <functional>
#include <utility>

namespace trireme::engine {

/// Measures its lifetime by the host's clock or the GPU's.
class Stopwatch {
 public:
  /// Adds the host's seconds to a sum, less what another clock has counted meanwhile.
  explicit Stopwatch(double& sum, std::function<double()> other_clock = nullptr)
      : sum_(&sum),
        other_clock_(std::move(other_clock)),
        other_start_(other()),
        start_(std::chrono::steady_clock::now()) {}
  /// Adds an interval to the GPU's timer.
  explicit Stopwatch(device::PhaseTimer& on_device) : on_device_(&on_device) { on_device.begin(); }
  ~Stopwatch() {
    if (on_device_ != nullptr) {
      on_device_->end();
      return;
    }
    *sum_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() - (other() - other_start_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double other() const { return other_clock_ ? other_clock_() : 0; }

  double* sum_ = nullptr;
  device::PhaseTimer* on_device_ = nullptr;
  std::function<double()> other_clock_;
  double other_start_ = 0;
  std::chrono::steady_clock::time_point start_;
};

} // namespace trireme::engine
