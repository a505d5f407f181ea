#pragma once

#include <chrono>
#include <functional>
#include <utility>

namespace trireme::engine {

/// Adds the time it lives, in seconds, to a sum; less what another clock has counted meanwhile.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum, std::function<double()> other_clock = nullptr)
      : sum_(sum), other_clock_(std::move(other_clock)), other_start_(other()), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() - (other() - other_start_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double other() const {
    return other_clock_ ? other_clock_() : 0;
  }

  double& sum_;
  std::function<double()> other_clock_;
  double other_start_;
  std::chrono::steady_clock::time_point start_;
};

} // namespace trireme::engine
