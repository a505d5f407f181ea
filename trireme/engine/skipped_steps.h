#pragma once

#include <trireme/engine/parts.h>
#include <trireme/engine/step_state.h>
#include <trireme/precision/overflow_report.h>

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::engine {

/// Logs steps whose loss or gradients are not finite, searches for the source of NaN and Inf after several in a row,
/// and ends a training that only skips.
class SkippedSteps {
 public:
  /// Records that step `number`, already counted in `state`, is skipped. Collective. Errors: Error after too many in a
  /// row, or at the smallest loss scale.
  void skip(const Parts& parts, const StepState& state, int64_t number, const std::string& why,
            const precision::LossScaler::Update& scaling);
  /// Whether the last step was skipped.
  bool in_row() const { return in_a_row_ > 0; }
  /// Whether hooks on the parameters look for the source of NaN and Inf in the next step.
  bool watches() const { return watch_ != nullptr; }
  /// A step was taken.
  void end_row() {
    in_a_row_ = 0;
    watch_.reset();
  }
  /// A checkpoint was loaded.
  void start_over() { in_a_row_ = 0; }

 private:
  int64_t in_a_row_ = 0;
  std::unique_ptr<precision::OverflowWatch> watch_; // while consecutive steps are skipped
  std::string source_;
};

} // namespace trireme::engine
