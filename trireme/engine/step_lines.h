#pragma once

#include <trireme/base/log.h>
#include <trireme/engine/engine.h>
#include <trireme/engine/step_outcome.h>
#include <trireme/monitor/metrics.h>

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace trireme::engine {

/// Writes a line for each step, in order. While a GPU computes a step's loss, its line waits for the next step, so that
/// the host does not.
class StepLines {
 public:
  using Write = std::function<void(monitor::StepMetrics& line)>;
  explicit StepLines(Write write) : write_(std::move(write)) {}
  StepLines(const StepLines&) = delete;
  StepLines& operator=(const StepLines&) = delete;
  /// Writes all lines; after an exception those that are known, because the GPU may not answer.
  ~StepLines() {
    try {
      std::uncaught_exceptions() == 0 ? finish() : write_known();
    } catch (const std::exception& error) {
      log::debug("the last step was not logged: ", error.what());
    }
  }

  /// Adds the line of the engine's last step; its loss, norm, learning rate and loss scale are set here. Errors: those
  /// of `write`.
  void add(const Engine& engine, monitor::StepMetrics line) {
    line.loss_scale = engine.loss_scale();
    lines_.emplace_back(std::move(line), engine.outcome());
    while (lines_.size() > 1) { // the next step has ended
      write_first();
    }
    write_known();
  }
  /// Writes all lines. The host waits for the last step.
  void finish() {
    while (!lines_.empty()) {
      write_first();
    }
  }

 private:
  void write_known() {
    while (!lines_.empty() && lines_.front().second->is_known()) {
      write_first();
    }
  }
  void write_first() {
    auto [line, outcome] = std::move(lines_.front());
    lines_.pop_front();
    line.loss = outcome->loss();
    line.lr = outcome->lr();
    line.grad_norm = outcome->grad_norm();
    write_(line);
  }

  Write write_;
  std::deque<std::pair<monitor::StepMetrics, std::shared_ptr<const StepOutcome>>> lines_;
};

} // namespace trireme::engine
