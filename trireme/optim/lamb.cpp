#include <trireme/optim/lamb.h>

#include <trireme/base/error.h>
#include <trireme/optim/device_kernels.h>
#include <trireme/optim/shard_check.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::optim {
namespace {

// Checks the norms of every parameter of the shard, on its device.
void check_norms(const ShardStep& shard, const at::Tensor& norms) {
  int64_t last = -1;
  for (const Segment& segment : shard.segments) {
    last = std::max(last, segment.parameter);
  }
  if (last >= 0 && (!norms.defined() || norms.numel() < 2 * last + 2)) {
    throw Error("optim", concat("lamb: no norms of parameter ", last, '.'), "Call prepare() for all shards first.");
  }
  if (last >= 0) {
    check_flat(norms, "lamb: norms", {at::kDouble}, shard.param.device());
  }
}

} // namespace

Lamb::Lamb(const LambOptions& options, StateType state_type) : Optimizer(state_type), options_(options) {
  check_common_options(name(), options);
  check_option(options.min_coeff >= 0, name(), "min_coeff", "at least 0", options.min_coeff);
  check_option(options.max_coeff >= options.min_coeff, name(), "max_coeff", "at least min_coeff", options.max_coeff);
  if (state_type == StateType::int8) {
    throw InputError(
        "optim",
        "lamb does not support 8-bit states: their blocks span parameters, but LAMB needs each parameter's "
        "norm.",
        "Use \"state_dtype\": \"bf16\".");
  }
}

const char* Lamb::name() const {
  return "lamb";
}

const std::vector<StateInfo>& Lamb::states() const {
  static const std::vector<StateInfo> states = states_of(LambOptions());
  return states;
}

void Lamb::set_scalars(kernels::StepScalars& row, const StepValues& values) const {
  const Betas betas = values.betas.value_or(Betas{options_.beta1, options_.beta2});
  const bucket::HeldMoments& held = values.held;
  const double step = static_cast<double>(values.step);
  const double second_steps = static_cast<double>(held.second_steps.value_or(values.step));
  const double correction = options_.bias_correction
                                ? std::sqrt(1 - std::pow(betas.beta2, second_steps)) / (1 - std::pow(betas.beta1, step))
                                : 1;
  row.weight_decay = static_cast<float>(values.weight_decay);
  row.one_minus_beta1 = held.first ? 0 : static_cast<float>(1 - betas.beta1);
  row.beta2 = held.second ? 1 : static_cast<float>(betas.beta2);
  row.one_minus_beta2 = held.second ? 0 : static_cast<float>(1 - betas.beta2);
  row.lr_times_correction = values.lr * correction;
}

kernels::LambArgs Lamb::args_of(const ShardStep& shard) const {
  check_shard(shard, *this);
  kernels::LambArgs args;
  set_arrays(args, shard);
  kernels::set_scalars(args, scalars(shard));
  args.exp_avg = state_array(shard, 0);
  args.exp_avg_sq = state_array(shard, 1);
  args.eps = static_cast<float>(options_.eps);
  args.eps_inside_root = options_.eps_inside_sqrt;
  return args;
}

void Lamb::prepare(const ShardStep& shard, const at::Tensor& sums) const {
  const kernels::LambArgs args = args_of(shard);
  check_norms(shard, sums);
  if (!shard.segments.empty()) {
    kernels_for(shard.param).lamb_moments(args, shard.segments, sums.mutable_data_ptr<double>(), shard.param.device());
  }
}

// As the kernels compute them.
at::Tensor Lamb::trust_ratios(const at::Tensor& norms) const {
  const at::Tensor roots = norms.view({-1, 2}).sqrt();
  const at::Tensor weight = roots.select(1, 0);
  const at::Tensor update = roots.select(1, 1);
  const at::Tensor ratio = weight.div(update).clamp_(options_.min_coeff, options_.max_coeff);
  return at::where(weight.gt(0).logical_and_(update.gt(0)), ratio, at::ones({}, ratio.options()));
}

void Lamb::step(const ShardStep& shard) const {
  const kernels::LambArgs args = args_of(shard);
  check_norms(shard, shard.norms);
  // Ratios that were set are already clamped.
  const bool given = shard.held.first;
  const double least = given ? 0 : options_.min_coeff;
  const double most = given ? std::numeric_limits<double>::infinity() : options_.max_coeff;
  if (!shard.segments.empty()) {
    kernels_for(shard.param)
        .lamb_apply(args, shard.segments, shard.norms.const_data_ptr<double>(),
                    {scalars(shard).lr_times_correction, least, most}, shard.param.device());
  }
}

} // namespace trireme::optim
