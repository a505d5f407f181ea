#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_x,
                            const std::optional<at::Tensor>& any_bias, int64_t form) {
    const at::Tensor x = any_x.contiguous();
    const at::Tensor bias = any_bias.value_or(at::Tensor());
    context->save_for_backward({x, bias});
    context->saved_data["form"] = form;
    const at::Tensor y = at::empty_like(x);
    const Parameters parameters(x, {bias});
    kernels::GeluArgs args;
    args.x = x.const_data_ptr();
    args.bias = parameters.data(0);
    args.y = y.mutable_data_ptr();
    args.columns = columns_of(x);
    args.element = element_of(x);
    args.parameters = parameters.element();
    args.form = static_cast<Gelu>(form);
    row_kernels(x)->gelu(args, rows_of(x), x.device());
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("bias_gelu");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& bias = saved[1];
    const at::Tensor dy = grads[0].to(x.scalar_type()).contiguous();
    const at::Tensor dx = at::empty_like(x);
    const Parameters parameters(x, {bias});
    kernels::GeluArgs args;
    args.x = x.const_data_ptr();
    args.bias = parameters.data(0);
    args.dy = dy.const_data_ptr();
    args.dx = dx.mutable_data_ptr();
    args.columns = columns_of(x);
    args.element = element_of(x);
    args.parameters = parameters.element();
    args.form = static_cast<Gelu>(context->saved_data["form"].toInt());
    const ParameterGradients dbias(x, parameters.element(), {context->needs_input_grad(1) ? bias : at::Tensor()});
    args.dbias = dbias.data(0);
    row_kernels(x)->gelu_backward(args, rows_of(x), x.device());
    return {dx, dbias.result(0), {}};
  }
};

} // namespace

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, Gelu form) {
  check_parameter("bias_gelu", "bias", bias, columns_of(x));
  if (row_kernels({x, bias}) == nullptr) {
    return at::gelu(bias.defined() ? x + bias : x, form == Gelu::tanh ? "tanh" : "none");
  }
  return BiasGelu::apply(x, if_defined(bias), static_cast<int64_t>(form));
}

} // namespace trireme::fused
