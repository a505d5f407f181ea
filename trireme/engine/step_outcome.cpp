#include <trireme/engine/step_outcome.h>

#include <trireme/base/log.h>
#include <trireme/engine/step_factor.h>

#include <torch/types.h>

#include <exception>
#include <utility>

namespace trireme::engine {

StepOutcome::StepOutcome(const Settings& settings, const OnDevice& on_device, device::ScalarsToHost reading)
    : settings_(settings), on_device_(on_device), reading_(std::move(reading)) {}

StepOutcome::~StepOutcome() {
  try {
    values();
  } catch (const std::exception& error) { // the device has failed; the error is reported elsewhere
    log::debug("the outcome of step ", settings_.step, " was not waited for: ", error.what());
  }
}

bool StepOutcome::is_known() const {
  return !reading_ || reading_->is_here();
}

const StepOutcome::Values& StepOutcome::values() const {
  if (reading_) {
    reading_->is_here(); // then wait() is none
    const std::vector<double>& numbers = reading_->wait();
    const StepFactor<double> step =
        step_factor(numbers[kLoss], numbers[kSquaredNorm], on_device_.has_norm, on_device_.unscale, /*clipping=*/0);
    values_ = {numbers[kLoss], on_device_.has_norm ? std::optional(step.norm) : std::nullopt, step.finite,
               numbers[kStop] > 0};
    reading_.reset();
  }
  return values_;
}

at::Tensor StepOutcome::loss_tensor() const {
  return is_known() ? torch::tensor(values().loss, torch::kFloat64) : on_device_.sums.select(0, kLoss);
}

at::Tensor StepOutcome::choose(double if_taken, double if_skipped) const {
  const at::Tensor& factor = on_device_.factor;
  return torch::where(factor.isnan(), torch::full_like(factor, if_skipped), torch::full_like(factor, if_taken))
      .reshape({});
}

} // namespace trireme::engine
