#include <trireme/parallel/tensor/mlp.h>

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/parallel/tensor/linear.h>

#include <ATen/ATen.h>

#include <vector>

namespace trireme::tensor {
namespace {

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
  const std::vector<at::Tensor> both =
      column_linears(x, {gate_proj->weight, up_proj->weight}, biases, ranks_, {gate_proj->fp8(), up_proj->fp8()});
  return down_proj->forward(fused::gated_silu(gate_proj->adapted(both[0], x), up_proj->adapted(both[1], x)));
}

} // namespace trireme::tensor
