#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Without a residual only y is returned, and h is x.
struct AddLayerNorm : torch::autograd::Function<AddLayerNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& any_x,
                               const std::optional<at::Tensor>& any_residual, const std::optional<at::Tensor>& any_bias,
                               const at::Tensor& weight, const at::Tensor& shift, double eps) {
    const at::Tensor x = any_x.contiguous();
    const bool adds = any_residual.has_value();
    const at::Tensor residual = adds ? any_residual->contiguous() : at::Tensor();
    const at::Tensor bias = any_bias.value_or(at::Tensor());
    const at::Tensor h = adds ? at::empty_like(x) : x;
    const at::Tensor y = at::empty_like(x);
    const int64_t rows = rows_of(x);
    const at::Tensor mean = floats_like(x, {rows});
    const at::Tensor rstd = floats_like(x, {rows});
    const Parameters parameters(x, {bias, weight, shift});
    kernels::LayerNormArgs args;
    args.x = x.const_data_ptr();
    args.residual = adds ? residual.const_data_ptr() : nullptr;
    args.bias = parameters.data(0);
    args.h = adds ? h.mutable_data_ptr() : nullptr;
    args.y = y.mutable_data_ptr();
    args.weight = parameters.data(1);
    args.shift = parameters.data(2);
    args.mean = mean.mutable_data_ptr<float>();
    args.rstd = rstd.mutable_data_ptr<float>();
    args.eps = static_cast<float>(eps);
    args.columns = columns_of(x);
    args.element = element_of(x);
    args.parameters = parameters.element();
    row_kernels(x)->layer_norm(args, rows, x.device());
    context->save_for_backward({h, weight, mean, rstd, shift, bias});
    context->saved_data["adds"] = adds;
    context->set_materialize_grads(false);
    return adds ? variable_list{h, y} : variable_list{y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("layer_norm");
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
    kernels::LayerNormArgs args;
    args.h = const_cast<void*>(h.const_data_ptr());
    args.weight = parameters.data(0);
    args.mean = const_cast<float*>(saved[2].const_data_ptr<float>());
    args.rstd = const_cast<float*>(saved[3].const_data_ptr<float>());
    args.dy = dy.const_data_ptr();
    args.dh_in = dh_in.defined() ? dh_in.const_data_ptr() : nullptr;
    args.dh = dh.mutable_data_ptr();
    args.columns = columns_of(h);
    args.element = element_of(h);
    const ParameterGradients sums(h, parameters.element(),
                                  {weight, saved[4], context->needs_input_grad(2) ? saved[5] : at::Tensor()});
    args.parameters = parameters.element();
    args.dweight = sums.data(0);
    args.dshift = sums.data(1);
    args.dbias = sums.data(2);
    row_kernels(h)->layer_norm_backward(args, rows_of(h), h.device());
    return {dh, adds ? dh : at::Tensor(), sums.result(2), sums.result(0), sums.result(1), {}};
  }
};

struct AddBias : torch::autograd::Function<AddBias> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_x, const at::Tensor& any_residual,
                            const at::Tensor& bias) {
    const at::Tensor x = any_x.contiguous();
    const at::Tensor residual = any_residual.contiguous();
    const at::Tensor out = at::empty_like(x);
    const Parameters parameters(x, {bias});
    kernels::AddBiasArgs args;
    args.x = x.const_data_ptr();
    args.residual = residual.const_data_ptr();
    args.bias = parameters.data(0);
    args.out = out.mutable_data_ptr();
    args.columns = columns_of(x);
    args.element = element_of(x);
    args.parameters = parameters.element();
    row_kernels(x)->add_bias(args, rows_of(x), x.device());
    context->save_for_backward({bias});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("add_bias");
    const at::Tensor dout = grads[0].contiguous();
    if (!context->needs_input_grad(2)) {
      return {dout, dout, {}};
    }
    kernels::ColumnSumArgs args;
    args.x = dout.const_data_ptr();
    args.columns = columns_of(dout);
    args.element = element_of(dout);
    const at::Tensor bias = context->get_saved_variables()[0];
    args.parameters = bias.scalar_type() == at::kBFloat16 ? args.element : kernels::Element::f32;
    const ParameterGradients sum(dout, args.parameters, {bias});
    args.sum = sum.data(0);
    row_kernels(dout)->column_sum(args, rows_of(dout), dout.device());
    return {dout, dout, sum.result(0)};
  }
};

} // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps) {
  check_parameter("layer_norm", "weight", weight, columns_of(x));
  check_parameter("layer_norm", "shift", shift, columns_of(x));
  if (row_kernels({x, weight, shift}) == nullptr || !weight.defined() || !shift.defined()) {
    return at::layer_norm(x, {columns_of(x)}, weight, shift, eps);
  }
  return AddLayerNorm::apply(x, std::optional<at::Tensor>(), std::optional<at::Tensor>(), weight, shift, eps)[0];
}

std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& bias, const at::Tensor& weight,
                                                 const at::Tensor& shift, double eps) {
  check_residual("add_layer_norm", x, residual);
  check_parameter("add_layer_norm", "bias", bias, columns_of(x));
  check_parameter("add_layer_norm", "weight", weight, columns_of(x));
  check_parameter("add_layer_norm", "shift", shift, columns_of(x));
  if (row_kernels({x, residual, bias, weight, shift}) == nullptr || !weight.defined() || !shift.defined()) {
    const at::Tensor h = residual + (bias.defined() ? x + bias : x);
    return {h, at::layer_norm(h, {columns_of(h)}, weight, shift, eps)};
  }
  const at::ScalarType type = at::result_type(x, residual);
  const auto both =
      AddLayerNorm::apply(x.to(type), if_defined(residual.to(type)), if_defined(bias), weight, shift, eps);
  return {both[0], both[1]};
}

at::Tensor add_bias(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& bias) {
  check_residual("add_bias", x, residual);
  check_parameter("add_bias", "bias", bias, columns_of(x));
  if (row_kernels({x, residual, bias}) == nullptr || !bias.defined()) {
    return residual + (bias.defined() ? x + bias : x);
  }
  const at::ScalarType type = at::result_type(x, residual);
  return AddBias::apply(x.to(type), residual.to(type), bias);
}

} // namespace trireme::fused
