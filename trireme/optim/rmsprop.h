#pragma once

#include <trireme/optim/optimizer.h>

namespace trireme::optim {

/// RMSprop, as in torch.optim.RMSprop.
///
/// States: square_avg; grad_avg when centered; momentum_buffer with momentum.
class Rmsprop final : public Optimizer {
 public:
  /// Errors: InputError naming the option that has an impossible value.
  explicit Rmsprop(const RmspropOptions& options, StateType state_type = StateType::fp32);

  const char* name() const override;
  const std::vector<StateInfo>& states() const override;
  void step(const ShardStep& shard) const override;

 private:
  void set_scalars(kernels::StepScalars& row, const StepValues& values) const override;
  RmspropOptions options_;
  std::vector<StateInfo> states_;
};

} // namespace trireme::optim
