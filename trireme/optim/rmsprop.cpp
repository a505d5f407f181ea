#include <trireme/optim/rmsprop.h>

#include <trireme/base/error.h>
#include <trireme/optim/device_kernels.h>
#include <trireme/optim/shard_check.h>

namespace trireme::optim {

Rmsprop::Rmsprop(const RmspropOptions& options, StateType state_type)
    : Optimizer(state_type), options_(options), states_(states_of(options)) {
  check_common_options(name(), options);
  check_option(options.alpha >= 0 && options.alpha <= 1, name(), "alpha", "in [0, 1]", options.alpha);
  check_option(options.momentum >= 0, name(), "momentum", "at least 0", options.momentum);
  if (options.centered && state_type != StateType::fp32) {
    throw InputError(
        "optim",
        "rmsprop: \"centered\" needs fp32 states: it takes the root of the difference of two states, which "
        "rounding can make negative.",
        "Remove \"state_dtype\", or set \"centered\" to false.");
  }
}

const char* Rmsprop::name() const {
  return "rmsprop";
}

const std::vector<StateInfo>& Rmsprop::states() const {
  return states_;
}

void Rmsprop::set_scalars(kernels::StepScalars& row, const StepValues& values) const {
  row.weight_decay = static_cast<float>(values.weight_decay);
  row.step_size = static_cast<float>(values.lr);
}

void Rmsprop::step(const ShardStep& shard) const {
  check_shard(shard, *this);
  kernels::RmspropArgs args;
  set_arrays(args, shard);
  kernels::set_scalars(args, scalars(shard));
  size_t next = 0;
  args.square_avg = state_array(shard, next++);
  if (options_.centered) {
    args.grad_avg = state_array(shard, next++);
  }
  if (options_.momentum > 0) {
    args.momentum_buffer = state_array(shard, next++);
  }
  args.alpha = static_cast<float>(options_.alpha);
  args.one_minus_alpha = static_cast<float>(1 - options_.alpha);
  args.momentum = static_cast<float>(options_.momentum);
  args.eps = static_cast<float>(options_.eps);
  kernels_for(shard.param).rmsprop(args, segments_of(shard).span(), shard.param.device());
}

} // namespace trireme::optim
