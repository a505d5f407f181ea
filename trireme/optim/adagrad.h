#pragma once

#include <trireme/optim/optimizer.h>

namespace trireme::optim {

/// Adagrad, as in torch.optim.Adagrad.
///
/// States: sum, which starts at initial_accumulator_value.
class Adagrad final : public Optimizer {
 public:
  /// Errors: InputError naming the option that has an impossible value.
  explicit Adagrad(const AdagradOptions& options, StateType state_type = StateType::fp32);

  const char* name() const override;
  const std::vector<StateInfo>& states() const override;
  void step(const ShardStep& shard) const override;

 private:
  void set_scalars(kernels::StepScalars& row, const StepValues& values) const override;
  AdagradOptions options_;
  std::vector<StateInfo> states_;
};

} // namespace trireme::optim
