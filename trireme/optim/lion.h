#pragma once

#include <trireme/optim/optimizer.h>

namespace trireme::optim {

/// Lion: steps of one size, with the sign of a moving average of the gradient.
///
/// States: exp_avg. Where that average is exactly 0 nothing moves, as in the paper; DeepSpeed steps by -lr there.
class Lion final : public Optimizer {
 public:
  /// Errors: InputError naming the option that has an impossible value.
  explicit Lion(const LionOptions& options, StateType state_type = StateType::fp32);

  const char* name() const override;
  const std::vector<StateInfo>& states() const override;
  void step(const ShardStep& shard) const override;

 private:
  LionOptions options_;
};

} // namespace trireme::optim
