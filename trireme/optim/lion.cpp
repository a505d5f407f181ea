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

void Lion::step(const ShardStep& shard) const {
  check_shard(shard, *this);
  const Betas betas = shard.betas.value_or(Betas{options_.beta1, options_.beta2});
  kernels::LionArgs args;
  set_arrays(args, shard);
  args.exp_avg = state_array(shard, 0);
  args.param_scale = static_cast<float>(1 - shard.lr * shard.weight_decay);
  args.lr = static_cast<float>(shard.lr);
  args.one_minus_beta1 = static_cast<float>(1 - betas.beta1);
  args.one_minus_beta2 = static_cast<float>(1 - betas.beta2);
  kernels_for(shard.param).lion(args, shard.param.numel(), shard.param.device());
}

} // namespace trireme::optim
