#include <trireme/optim/adam.h>

#include <trireme/optim/device_kernels.h>
#include <trireme/optim/shard_check.h>

#include <cmath>

namespace trireme::optim {

Adam::Adam(const AdamOptions& options, StateType state_type) : Optimizer(state_type), options_(options) {
  check_common_options(name(), options);
}

const char* Adam::name() const {
  return options_.decoupled_weight_decay ? "adamw" : "adam";
}

const std::vector<StateInfo>& Adam::states() const {
  static const std::vector<StateInfo> states = states_of(AdamOptions());
  return states;
}

void Adam::set_scalars(kernels::StepScalars& row, const StepValues& values) const {
  const Betas betas = values.betas.value_or(Betas{options_.beta1, options_.beta2});
  const double step = static_cast<double>(values.step);
  // Computed in double and rounded once: 1 - beta2 in fp32 would lose four digits.
  const double correction1 = options_.bias_correction ? 1 - std::pow(betas.beta1, step) : 1;
  const bucket::HeldMoments& held = values.held;
  const double correction2 =
      options_.bias_correction ? 1 - std::pow(betas.beta2, static_cast<double>(held.second_steps.value_or(values.step)))
                               : 1;
  const bool decoupled = options_.decoupled_weight_decay;
  row.weight_decay = decoupled ? 0 : static_cast<float>(values.weight_decay);
  row.param_scale = decoupled ? static_cast<float>(1 - values.lr * values.weight_decay) : 1;
  row.one_minus_beta1 = held.first ? 0 : static_cast<float>(1 - betas.beta1);
  row.beta2 = held.second ? 1 : static_cast<float>(betas.beta2);
  row.one_minus_beta2 = held.second ? 0 : static_cast<float>(1 - betas.beta2);
  row.step_size = static_cast<float>(values.lr / correction1);
  row.root_scale = static_cast<float>(1 / std::sqrt(correction2));
}

void Adam::step(const ShardStep& shard) const {
  check_shard(shard, *this);
  kernels::AdamArgs args;
  set_arrays(args, shard);
  kernels::set_scalars(args, scalars(shard));
  args.exp_avg = state_array(shard, 0);
  args.exp_avg_sq = state_array(shard, 1);
  for (const Segment& segment : shard.segments) { // one kernel steps all, so it adds the decay if one has it
    const float decay = shard.rows.empty() ? args.weight_decay : shard.rows[segment.row].weight_decay;
    args.weight_decay = decay != 0 ? decay : args.weight_decay;
  }
  args.eps = static_cast<float>(options_.eps);
  kernels_for(shard.param).adam(args, segments_of(shard).span(), shard.param.device());
}

} // namespace trireme::optim
