#pragma once

#include <trireme/optim/optimizer.h>

namespace trireme::optim {

/// Lion: each step is lr times the sign of a moving average of the gradient.
///
/// States: exp_avg. A weight whose average is exactly 0 is unchanged, as in the paper; DeepSpeed steps it by -lr.
class Lion final : public Optimizer {
 public:
  /// Errors: InputError naming the option that has an impossible value.
  explicit Lion(const LionOptions& options, StateType state_type = StateType::fp32);

  const char* name() const override;
  const std::vector<StateInfo>& states() const override;
  void step(const ShardStep& shard) const override;

 private:
  void set_scalars(kernels::StepScalars& row, const StepValues& values) const override;
  LionOptions options_;
};

} // namespace trireme::optim
