#include <trireme/fused/dropout.h>

#include <trireme/fused/rows.h>

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// nullptr: at::dropout does it.
const RowKernels* dropout_kernels(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  const bool known = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  if (!known || x.layout() != at::kStrided || (x.is_cpu() && kernels::active_simd() == kernels::Simd::scalar)) {
    return nullptr;
  }
  return row_kernels(x);
}

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_x,
                            const std::optional<at::Tensor>& any_residual, const at::Tensor& seed, double p) {
    const at::Tensor x = any_x.contiguous();
    const at::Tensor residual = any_residual ? any_residual->contiguous() : at::Tensor();
    context->save_for_backward({seed});
    context->saved_data["p"] = p;
    const at::Tensor y = at::empty_like(x);
    kernels::DropoutArgs args;
    args.x = x.const_data_ptr();
    args.residual = residual.defined() ? residual.const_data_ptr() : nullptr;
    args.y = y.mutable_data_ptr();
    args.seed = seed.const_data_ptr<int64_t>();
    args.set_probability(p);
    args.element = element_of(x);
    row_kernels(x)->dropout(args, x.numel(), x.device());
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor& dy = grads[0];
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = Dropout::apply(dy, std::optional<at::Tensor>(), context->get_saved_variables()[0],
                          context->saved_data["p"].toDouble());
    }
    return {dx, context->needs_input_grad(1) ? dy : at::Tensor(), {}, {}};
  }
};

void check_probability(double p) {
  if (!(p >= 0 && p <= 1)) {
    throw InputError("fused", concat("dropout: p is ", p, ", which is no probability."), "Choose one from 0 to 1.");
  }
}

at::Tensor drawn_seed(const at::Tensor& x) {
  return at::empty({1}, x.options().dtype(at::kLong)).random_();
}

} // namespace

at::Tensor dropout(const at::Tensor& x, double p) {
  check_probability(p);
  if (p == 0) {
    return x;
  }
  if (dropout_kernels(x) == nullptr) {
    return at::dropout(x, p, /*train=*/true);
  }
  return Dropout::apply(x, std::optional<at::Tensor>(), drawn_seed(x), p);
}

at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& residual, double p) {
  check_probability(p);
  check_residual("add_dropout", x, residual);
  const at::ScalarType type = at::result_type(x, residual);
  if (p == 0 || dropout_kernels(x) == nullptr || dropout_kernels(residual) == nullptr ||
      x.device() != residual.device() || (type != x.scalar_type() && type != residual.scalar_type())) {
    return residual + dropout(x, p);
  }
  return Dropout::apply(x.to(type), residual.to(type), drawn_seed(x), p);
}

} // namespace trireme::fused
