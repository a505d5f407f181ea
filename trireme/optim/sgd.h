#pragma once

#include <trireme/optim/optimizer.h>

namespace trireme::optim {

/// Stochastic gradient descent with momentum, dampening and Nesterov momentum, as in torch.optim.SGD.
///
/// States: momentum_buffer with momentum, else none. The first step overwrites the buffer with the gradient, undamped.
class Sgd final : public Optimizer {
 public:
  /// Errors: InputError for a negative value, or nesterov without momentum or with dampening.
  explicit Sgd(const SgdOptions& options, StateType state_type = StateType::fp32);

  const char* name() const override;
  const std::vector<StateInfo>& states() const override;
  void step(const ShardStep& shard) const override;

 private:
  void set_scalars(kernels::StepScalars& row, const StepValues& values) const override;
  SgdOptions options_;
  std::vector<StateInfo> states_;
};

} // namespace trireme::optim
