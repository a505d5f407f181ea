#include <trireme/optim/lion.h>

#include <trireme/optim/device_kernels.h>
#include <trireme/optim/shard_check.h>

namespace trireme::optim {

Lion::Lion(const LionOptions& options, StateType state_type) : Optimizer(state_type), options_(options) {
  check_common_options(name(), options);
}

const char* Lion::name() const {
  return "lion";
}

const std::vector<StateInfo>& Lion::states() const {
  static const std::vector<StateInfo> states = states_of(LionOptions());
  return states;
}

void Lion::set_scalars(kernels::StepScalars& row, const StepValues& values) const {
  const Betas betas = values.betas.value_or(Betas{options_.beta1, options_.beta2});
  row.param_scale = static_cast<float>(1 - values.lr * values.weight_decay);
  row.step_size = static_cast<float>(values.lr);
  row.one_minus_beta1 = static_cast<float>(1 - betas.beta1);
  row.one_minus_beta2 = static_cast<float>(1 - betas.beta2);
}

void Lion::step(const ShardStep& shard) const {
  check_shard(shard, *this);
  kernels::LionArgs args;
  set_arrays(args, shard);
  kernels::set_scalars(args, scalars(shard));
  args.exp_avg = state_array(shard, 0);
  kernels_for(shard.param).lion(args, segments_of(shard).span(), shard.param.device());
}

} // namespace trireme::optim
