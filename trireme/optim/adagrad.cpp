#include <trireme/optim/adagrad.h>

#include <trireme/optim/device_kernels.h>
#include <trireme/optim/shard_check.h>

namespace trireme::optim {

Adagrad::Adagrad(const AdagradOptions& options, StateType state_type)
    : Optimizer(state_type), options_(options), states_(states_of(options)) {
  check_common_options(name(), options);
  check_option(options.lr_decay >= 0, name(), "lr_decay", "at least 0", options.lr_decay);
  check_option(options.initial_accumulator_value >= 0, name(), "initial_accumulator_value", "at least 0",
               options.initial_accumulator_value);
}

const char* Adagrad::name() const {
  return "adagrad";
}

const std::vector<StateInfo>& Adagrad::states() const {
  return states_;
}

void Adagrad::set_scalars(kernels::StepScalars& row, const StepValues& values) const {
  row.weight_decay = static_cast<float>(values.weight_decay);
  row.step_size = static_cast<float>(values.lr / (1 + static_cast<double>(values.step - 1) * options_.lr_decay));
}

void Adagrad::step(const ShardStep& shard) const {
  check_shard(shard, *this);
  kernels::AdagradArgs args;
  set_arrays(args, shard);
  kernels::set_scalars(args, scalars(shard));
  args.sum = state_array(shard, 0);
  args.eps = static_cast<float>(options_.eps);
  kernels_for(shard.param).adagrad(args, segments_of(shard).span(), shard.param.device());
}

} // namespace trireme::optim
