#include <trireme/parallel/tensor/mlp.h>

#include <trireme/base/error.h>
#include <trireme/fused/rows.h>
#include <trireme/parallel/tensor/linear.h>

#include <ATen/ATen.h>
#include <torch/autograd.h>

#include <vector>

namespace trireme::tensor {
namespace {

struct GatedSilu : torch::autograd::Function<GatedSilu> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    fused::refuse_create_graph("gated_silu");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    return {at::silu_backward(grads[0] * saved[1], saved[0]), at::silu(saved[0]).mul_(grads[0])};
  }
};

const ParallelMlpOptions& checked_mlp(const ParallelMlpOptions& options) {
  if (options.hidden < 1 || options.intermediate < 1) {
    throw InputError(
        "tensor parallel",
        concat("an MLP of hidden ", options.hidden, " and intermediate ", options.intermediate, ": both must be >= 1"),
        "Give both.");
  }
  return options;
}

} // namespace

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  return GatedSilu::apply(gate, up);
}

ParallelMlpImpl::ParallelMlpImpl(const ParallelMlpOptions& given, const Ranks& ranks) : ranks_(ranks) {
  const ParallelMlpOptions& options = checked_mlp(given);
  gate_proj =
      register_module("gate_proj", ColumnParallelLinear(options.hidden, options.intermediate, ranks, options.bias));
  up_proj = register_module("up_proj", ColumnParallelLinear(options.hidden, options.intermediate, ranks, options.bias));
  down_proj =
      register_module("down_proj", RowParallelLinear(options.intermediate, options.hidden, ranks, options.bias));
}

at::Tensor ParallelMlpImpl::forward(const at::Tensor& x) {
  const std::vector<at::Tensor> biases =
      gate_proj->bias.defined() ? std::vector<at::Tensor>{gate_proj->bias, up_proj->bias} : std::vector<at::Tensor>();
  const std::vector<at::Tensor> both = column_linears(x, {gate_proj->weight, up_proj->weight}, biases, ranks_);
  return down_proj->forward(gated_silu(both[0], both[1]));
}

} // namespace trireme::tensor
