#include <trireme/optim/optimizer.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>
#include <trireme/base/overloaded.h>
#include <trireme/optim/adagrad.h>
#include <trireme/optim/adam.h>
#include <trireme/optim/device_kernels.h>
#include <trireme/optim/lamb.h>
#include <trireme/optim/lion.h>
#include <trireme/optim/rmsprop.h>
#include <trireme/optim/sgd.h>
#include <trireme/optim/shard_check.h>

#include <ATen/Functions.h>

namespace trireme::optim {
namespace {

// Gives each step an independent seed for rounding.
uint32_t seed_of(int64_t step) {
  const auto seed = static_cast<uint32_t>(mix64(static_cast<uint64_t>(step) * kMixStep) >> 32);
  return seed == kernels::kToNearest ? 1 : seed;
}

kernels::StateArray codes_and_scales(const at::Tensor& codes, const at::Tensor& scales) {
  return {codes.mutable_data_ptr(), kernels::Element::u8, scales.mutable_data_ptr<float>()};
}

} // namespace

kernels::StepScalars Optimizer::scalars(const StepValues& values) const {
  if (values.step < 1) {
    throw Error("optim", concat(name(), ": steps count from 1, got ", values.step, '.'));
  }
  kernels::StepScalars row;
  row.seed = seed_of(values.step);
  set_scalars(row, values);
  return row;
}

void Optimizer::prepare(const ShardStep&, const at::Tensor&) const {
  throw Error("optim", concat(name(), ": a step has one phase, prepare() is for those that need norms."));
}

at::Tensor Optimizer::trust_ratios(const at::Tensor&) const {
  throw Error("optim", concat(name(), " has no trust ratios."));
}

at::ScalarType scalar_type(StateType type) {
  return type == StateType::bf16 ? at::kBFloat16 : type == StateType::int8 ? at::kByte : at::kFloat;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options) {
  const StateType type = options.state_type;
  const Overloaded make{
      [&](const AdamOptions& rule) -> std::unique_ptr<Optimizer> { return std::make_unique<Adam>(rule, type); },
      [&](const SgdOptions& rule) -> std::unique_ptr<Optimizer> { return std::make_unique<Sgd>(rule, type); },
      [&](const LambOptions& rule) -> std::unique_ptr<Optimizer> { return std::make_unique<Lamb>(rule, type); },
      [&](const LionOptions& rule) -> std::unique_ptr<Optimizer> { return std::make_unique<Lion>(rule, type); },
      [&](const AdagradOptions& rule) -> std::unique_ptr<Optimizer> { return std::make_unique<Adagrad>(rule, type); },
      [&](const RmspropOptions& rule) -> std::unique_ptr<Optimizer> { return std::make_unique<Rmsprop>(rule, type); },
  };
  return std::visit(make, options.rule);
}

void add_squared_norm(const at::Tensor& grad, const at::Tensor& sum) {
  check_flat(grad, "squared_norm: grad", {at::kFloat, at::kBFloat16, at::kHalf}, grad.device());
  check_flat(sum, "squared_norm: sum", {at::kDouble}, grad.device());
  kernels_for(grad).add_squared_norm(grad.const_data_ptr(), element_of(grad.scalar_type()), grad.numel(),
                                     sum.mutable_data_ptr<double>(), grad.device());
}

double squared_norm(const at::Tensor& grad) {
  const at::Tensor sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(grad.device()));
  add_squared_norm(grad, sum);
  return sum.item<double>();
}

at::Tensor decode_states(const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  at::Tensor values = at::empty({codes.numel()}, codes.options().dtype(at::kFloat));
  kernels_for(codes).decode_states(codes_and_scales(codes, scales), is_signed, codes.numel(),
                                   values.mutable_data_ptr<float>(), codes.device());
  return values;
}

void encode_states(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  kernels_for(codes).encode_states(codes_and_scales(codes, scales), is_signed, codes.numel(),
                                   values.const_data_ptr<float>(), codes.device());
}

} // namespace trireme::optim
