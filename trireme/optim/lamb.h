#pragma once

#include <trireme/kernels/optimizer_args.h>
#include <trireme/optim/optimizer.h>

namespace trireme::optim {

/// LAMB: Adam's moments, and each parameter's step scaled by its trust ratio. Norms are those of full parameters, also
/// if they lie in several shards: prepare() computes this rank's part of them.
///
/// States: exp_avg, exp_avg_sq; fp32 or bf16. Formula as in DeepSpeed: the bias correction multiplies the complete
/// step, weight decay included.
class Lamb final : public Optimizer {
 public:
  /// Errors: InputError naming the option that has an impossible value.
  explicit Lamb(const LambOptions& options, StateType state_type = StateType::fp32);

  const char* name() const override;
  const std::vector<StateInfo>& states() const override;
  void step(const ShardStep& shard) const override;

  bool needs_norms() const override { return true; }
  void prepare(const ShardStep& shard, const at::Tensor& sums) const override;
  at::Tensor trust_ratios(const at::Tensor& norms) const override;

 private:
  void set_scalars(kernels::StepScalars& row, const StepValues& values) const override;
  kernels::LambArgs args_of(const ShardStep& shard) const;

  LambOptions options_;
};

} // namespace trireme::optim
