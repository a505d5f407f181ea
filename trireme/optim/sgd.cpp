#include <trireme/optim/sgd.h>

#include <trireme/base/error.h>
#include <trireme/optim/device_kernels.h>
#include <trireme/optim/shard_check.h>

namespace trireme::optim {

Sgd::Sgd(const SgdOptions& options, StateType state_type)
    : Optimizer(state_type), options_(options), states_(states_of(options)) {
  check_common_options(name(), options);
  check_option(options.momentum >= 0, name(), "momentum", "at least 0", options.momentum);
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw InputError("optim", concat("sgd: nesterov needs momentum above 0 and dampening 0, got ", options.momentum,
                                     " and ", options.dampening, '.'));
  }
}

const char* Sgd::name() const {
  return "sgd";
}

const std::vector<StateInfo>& Sgd::states() const {
  return states_;
}

void Sgd::set_scalars(kernels::StepScalars& row, const StepValues& values) const {
  row.weight_decay = static_cast<float>(values.weight_decay);
  row.step_size = static_cast<float>(values.lr);
  row.first = values.step == 1 ? 1 : 0;
}

void Sgd::step(const ShardStep& shard) const {
  check_shard(shard, *this);
  kernels::SgdArgs args;
  set_arrays(args, shard);
  kernels::set_scalars(args, scalars(shard));
  if (!shard.states.empty()) {
    args.momentum_buffer = state_array(shard, 0);
  }
  args.momentum = static_cast<float>(options_.momentum);
  args.one_minus_dampening = static_cast<float>(1 - options_.dampening);
  args.nesterov = options_.nesterov;
  kernels_for(shard.param).sgd(args, segments_of(shard).span(), shard.param.device());
}

} // namespace trireme::optim
