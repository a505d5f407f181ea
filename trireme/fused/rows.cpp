#include <trireme/fused/rows.h>

#include <torch/utils.h>

namespace trireme::fused {

bool usable(std::initializer_list<at::Tensor> tensors) {
  const auto known = [](const at::Tensor& t) {
    return !t.defined() || (t.is_cpu() && t.layout() == at::kStrided &&
                            (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16));
  };
  return kernels::active_simd() != kernels::Simd::scalar && std::all_of(tensors.begin(), tensors.end(), known);
}

bool has_passes(const at::Tensor& x) {
  return usable({x});
}

void refuse_create_graph(const char* operation, const char* next) {
  if (at::GradMode::is_enabled()) {
    throw Error("fused", concat(operation, " cannot be differentiated twice (backward with create_graph)."), next);
  }
}

void check_parameter(const char* operation, const char* name, const at::Tensor& parameter, int64_t columns) {
  if (parameter.defined() && (parameter.dim() != 1 || parameter.size(0) != columns)) {
    throw InputError("fused", concat(operation, ": the ", name, " has the shape ", parameter.sizes(),
                                     ", but rows have ", columns, " columns."));
  }
}

void check_residual(const char* operation, const at::Tensor& x, const at::Tensor& residual) {
  if (x.sizes() != residual.sizes()) {
    throw InputError("fused",
                     concat(operation, ": x has the shape ", x.sizes(), ", the residual ", residual.sizes(), '.'));
  }
}

at::Tensor partial_sums(int64_t blocks, int64_t columns) {
  return at::zeros({blocks, columns}, at::kFloat);
}

at::Tensor add_up(const at::Tensor& partial) {
  at::Tensor total = at::zeros({partial.size(1)}, at::kFloat);
  kernels::ColumnSumArgs args;
  args.x = partial.const_data_ptr();
  args.sum = total.mutable_data_ptr<float>();
  args.columns = partial.size(1);
  kernels::active_fused_kernels().column_sum(args, 0, partial.size(0));
  return total;
}

} // namespace trireme::fused
