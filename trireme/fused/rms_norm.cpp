#include <trireme/fused/floats.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/autograd.h>

#include <vector>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Normalised {
  at::Tensor h; // x + residual, or x without one
  at::Tensor y, rstd;
};

enum class Rstd { kept, dropped };

Normalised normalise(const at::Tensor& any_x, const at::Tensor& any_residual, const at::Tensor& weight, double eps,
                     Rstd rstd = Rstd::kept) {
  const at::Tensor x = any_x.contiguous();
  const bool adds = any_residual.defined();
  const at::Tensor residual = adds ? any_residual.contiguous() : at::Tensor();
  const int64_t rows = rows_of(x);
  const bool keeps = rstd == Rstd::kept || !x.is_cpu();
  const Normalised result{adds ? at::empty_like(x) : x, at::empty_like(x),
                          keeps ? floats_like(x, {rows}) : at::Tensor()};
  std::vector<float> dropped(keeps ? 0 : static_cast<size_t>(rows));
  const Parameters parameters(x, {weight});
  kernels::RmsNormArgs args;
  args.x = x.const_data_ptr();
  args.residual = adds ? residual.const_data_ptr() : nullptr;
  args.h = adds ? result.h.mutable_data_ptr() : nullptr;
  args.y = result.y.mutable_data_ptr();
  args.weight = parameters.data(0);
  args.rstd = keeps ? result.rstd.mutable_data_ptr<float>() : dropped.data();
  args.eps = static_cast<float>(eps);
  args.columns = columns_of(x);
  args.element = element_of(x);
  args.parameters = parameters.element();
  row_kernels(x)->rms_norm(args, rows, x.device());
  return result;
}

// Without a residual only y is returned, and h is x.
struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                               const at::Tensor& weight, double eps) {
    const auto [h, y, rstd] = normalise(x, residual.value_or(at::Tensor()), weight, eps);
    context->save_for_backward({h, weight, rstd});
    context->saved_data["adds"] = residual.has_value();
    context->set_materialize_grads(false);
    return residual.has_value() ? variable_list{h, y} : variable_list{y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("rms_norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& h = saved[0];
    const at::Tensor& weight = saved[1];
    const bool adds = context->saved_data["adds"].toBool();
    const auto contiguous = [&](const at::Tensor& t) { return t.defined() ? t.to(h.scalar_type()).contiguous() : t; };
    const at::Tensor dh_in = adds ? contiguous(grads[0]) : at::Tensor();
    const at::Tensor dy_given = contiguous(grads.back());
    const at::Tensor dy = dy_given.defined() ? dy_given : at::zeros_like(h);
    const at::Tensor dh = at::empty_like(h);
    const Parameters parameters(h, {weight});
    kernels::RmsNormArgs args;
    args.h = const_cast<void*>(h.const_data_ptr());
    args.weight = parameters.data(0);
    args.rstd = const_cast<float*>(saved[2].const_data_ptr<float>());
    args.dy = dy.const_data_ptr();
    args.dh_in = dh_in.defined() ? dh_in.const_data_ptr() : nullptr;
    args.dh = dh.mutable_data_ptr();
    args.columns = columns_of(h);
    args.element = element_of(h);
    const ParameterGradients dweight(h, parameters.element(), {weight});
    args.parameters = parameters.element();
    args.dweight = dweight.data(0);
    row_kernels(h)->rms_norm_backward(args, rows_of(h), h.device());
    return {dh, adds ? dh : at::Tensor(), dweight.result(0), {}};
  }
};

at::Tensor aten_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return (at::rms_norm(x, {columns_of(x)}, {}, eps) * weight).to(x.scalar_type());
}

} // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_parameter("rms_norm", "weight", weight, columns_of(x));
  if (row_kernels({x, weight}) == nullptr) {
    return aten_rms_norm(x, weight, eps);
  }
  if (c10::InferenceMode::is_enabled()) { // nothing is kept: saves the node
    return normalise(x, {}, weight, eps, Rstd::dropped).y;
  }
  return AddRmsNorm::apply(x, std::optional<at::Tensor>(), weight, eps)[0];
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double eps) {
  check_residual("add_rms_norm", x, residual);
  check_parameter("add_rms_norm", "weight", weight, columns_of(x));
  if (row_kernels({x, residual, weight}) == nullptr) {
    const at::Tensor h = residual + x;
    return {h, aten_rms_norm(h, weight, eps)};
  }
  const at::ScalarType type =
      x.scalar_type() == residual.scalar_type() ? x.scalar_type() : at::result_type(x, residual);
  if (c10::InferenceMode::is_enabled()) {
    const auto [h, y, rstd] = normalise(with_type(x, type), with_type(residual, type), weight, eps, Rstd::dropped);
    return {h, y};
  }
  const auto both = AddRmsNorm::apply(x.to(type), if_defined(residual.to(type)), weight, eps);
  return {both[0], both[1]};
}

} // namespace trireme::fused
