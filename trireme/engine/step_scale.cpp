#include <trireme/engine/step_scale.h>

#include <trireme/precision/cast.h>

namespace trireme::engine {

double StepScale::root_gradient(at::ScalarType loss, int64_t micro_batches) {
  const bool lowered = scaler_.limit(precision::largest_power(loss) * static_cast<double>(micro_batches));
  lowered_between_ = lowered_between_ || (lowered && was_used_);
  was_used_ = true;
  return scaler_.scale() / static_cast<double>(micro_batches);
}

StepScale::Roots StepScale::root_gradients(int64_t micro_batches) const {
  const auto after = [&](bool overflow) {
    precision::LossScaler next = scaler_;
    return next.update(overflow).scale / static_cast<double>(micro_batches);
  };
  return {after(false), after(true)};
}

double StepScale::lowered() const {
  return scaler_.scale() == agreed_ ? 0 : lowered_between_ ? 0.5 : 1;
}

bool StepScale::agree(double sum, int ranks, int64_t micro_batches) {
  if (sum == 0) {
    return true;
  }
  scaler_.limit(precision::largest_power(at::kHalf) * static_cast<double>(micro_batches));
  return sum == ranks;
}

precision::LossScaler::Update StepScale::update(bool overflow) {
  const precision::LossScaler::Update update = scaler_.update(overflow);
  agreed_ = update.scale;
  return update;
}

} // namespace trireme::engine
