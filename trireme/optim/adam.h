#pragma once

#include <trireme/optim/optimizer.h>

namespace trireme::optim {

/// Adam and AdamW; name() is "adam" or "adamw".
///
/// States: exp_avg, exp_avg_sq. After 100 steps the parameters differ by a few ulps from torch.optim.Adam and AdamW
/// (tests/optim/reference_optimizers.py).
class Adam final : public Optimizer {
 public:
  /// Errors: InputError for betas outside [0, 1) or a negative lr, eps or weight_decay.
  explicit Adam(const AdamOptions& options, StateType state_type = StateType::fp32);

  const char* name() const override;
  const std::vector<StateInfo>& states() const override;
  void step(const ShardStep& shard) const override;

 private:
  void set_scalars(kernels::StepScalars& row, const StepValues& values) const override;
  AdamOptions options_;
};

} // namespace trireme::optim
