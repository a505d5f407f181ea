#include <trireme/fused/fused.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/autograd.h>

namespace trireme::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) {
  const RowKernels* const there = row_kernels({gate, up});
  if (there == nullptr) {
    return at::silu(gate).mul_(up);
  }
  const at::Tensor y = at::empty_like(gate);
  kernels::GatedSiluArgs args;
  args.gate = gate.const_data_ptr();
  args.up = up.const_data_ptr();
  args.y = y.mutable_data_ptr();
  args.element = element_of(gate);
  there->gated_silu(args, gate.numel(), gate.device());
  return y;
}

struct GatedSilu : torch::autograd::Function<GatedSilu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& any_gate, const at::Tensor& any_up) {
    const at::Tensor gate = any_gate.contiguous(), up = any_up.contiguous();
    context->save_for_backward({gate, up});
    return gated(gate, up);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    refuse_create_graph("gated_silu");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const RowKernels* const there = row_kernels({gate, up});
    if (there == nullptr) {
      return {at::silu_backward(grads[0] * up, gate), at::silu(gate).mul_(grads[0])};
    }
    const at::Tensor dy = grads[0].to(gate.scalar_type()).contiguous();
    const at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
    kernels::GatedSiluArgs args;
    args.gate = gate.const_data_ptr();
    args.up = up.const_data_ptr();
    args.dy = dy.const_data_ptr();
    args.dgate = dgate.mutable_data_ptr();
    args.dup = dup.mutable_data_ptr();
    args.element = element_of(gate);
    there->gated_silu_backward(args, gate.numel(), gate.device());
    return {dgate, dup};
  }
};

} // namespace

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  if (gate.sizes() != up.sizes() || gate.scalar_type() != up.scalar_type()) {
    throw InputError("fused",
                     concat("gated_silu: gate and up must be alike, got ", c10::toString(gate.scalar_type()), ' ',
                            gate.sizes(), " and ", c10::toString(up.scalar_type()), ' ', up.sizes(), '.'));
  }
  if (c10::InferenceMode::is_enabled()) { // nothing is kept: saves the node
    return gated(gate.contiguous(), up.contiguous());
  }
  return GatedSilu::apply(gate, up);
}

} // namespace trireme::fused
