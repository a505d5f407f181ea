#include <trireme/fused/floats.h>
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
    const Floats floats(bias);
    kernels::GeluArgs args;
    args.x = x.const_data_ptr();
    args.bias = floats.data();
    args.y = y.mutable_data_ptr();
    args.columns = columns_of(x);
    args.element = element_of(x);
    args.form = static_cast<Gelu>(form);
    parallel_rows(rows_of(x), args.columns,
                  [&](int64_t begin, int64_t end) { kernels::active_fused_kernels().gelu(args, begin, end); });
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("bias_gelu");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& bias = saved[1];
    const at::Tensor dy = grads[0].to(x.scalar_type()).contiguous();
    const at::Tensor dx = at::empty_like(x);
    const Floats floats(bias);
    kernels::GeluArgs args;
    args.x = x.const_data_ptr();
    args.bias = floats.data();
    args.dy = dy.const_data_ptr();
    args.dx = dx.mutable_data_ptr();
    args.columns = columns_of(x);
    args.element = element_of(x);
    args.form = static_cast<Gelu>(context->saved_data["form"].toInt());
    if (!bias.defined() || !context->needs_input_grad(1)) {
      parallel_rows(rows_of(x), args.columns, [&](int64_t begin, int64_t end) {
        kernels::active_fused_kernels().gelu_backward(args, begin, end);
      });
      return {dx, {}, {}};
    }
    const auto sums = summed_rows<1>(rows_of(x), args.columns, [&](int64_t begin, int64_t end, const auto& partial) {
      kernels::GeluArgs mine = args;
      mine.dbias = partial[0];
      kernels::active_fused_kernels().gelu_backward(mine, begin, end);
    });
    return {dx, sums[0].to(bias.scalar_type()), {}};
  }
};

} // namespace

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, Gelu form) {
  check_parameter("bias_gelu", "bias", bias, columns_of(x));
  if (!usable({x, bias})) {
    return at::gelu(bias.defined() ? x + bias : x, form == Gelu::tanh ? "tanh" : "none");
  }
  return BiasGelu::apply(x, if_defined(bias), static_cast<int64_t>(form));
}

} // namespace trireme::fused
