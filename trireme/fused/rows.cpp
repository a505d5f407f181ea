#include <trireme/fused/rows.h>

#include <trireme/fused/floats.h>

#include <torch/utils.h>

namespace trireme::fused {

bool usable(std::initializer_list<at::Tensor> tensors) {
  const auto known = [](const at::Tensor& t) {
    return !t.defined() || (t.is_cpu() && t.layout() == at::kStrided &&
                            (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16));
  };
  return kernels::active_simd() != kernels::Simd::scalar && std::all_of(tensors.begin(), tensors.end(), known);
}

const RowKernels* row_kernels(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor* first = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    first = first == nullptr ? &tensor : first;
    if (tensor.layout() != at::kStrided || tensor.device() != first->device() ||
        (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kBFloat16)) {
      return nullptr;
    }
  }
  if (first == nullptr || (first->is_cpu() && kernels::active_simd() == kernels::Simd::scalar)) {
    return nullptr;
  }
  return row_kernels(*first);
}

bool has_passes(const at::Tensor& x) {
  return row_kernels({x}) != nullptr;
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

Parameters::Parameters(const at::Tensor& x, std::initializer_list<at::Tensor> parameters)
    : parameters_(parameters), type_(x.scalar_type()) {
  for (const at::Tensor& parameter : parameters_) {
    type_ = parameter.defined() && parameter.scalar_type() != at::kBFloat16 ? at::kFloat : type_;
  }
  for (at::Tensor& parameter : parameters_) {
    if (parameter.defined()) {
      parameter = with_type(parameter, type_).contiguous();
    }
  }
}

ParameterGradients::ParameterGradients(const at::Tensor& x, kernels::Element element,
                                       std::initializer_list<at::Tensor> parameters) {
  const at::ScalarType type = element == kernels::Element::bf16 ? at::kBFloat16 : at::kFloat;
  const bool has_rows = rows_of(x) > 0;
  for (const at::Tensor& parameter : parameters) {
    types_.push_back(parameter.defined() ? parameter.scalar_type() : type);
    at::Tensor own, result;
    if (parameter.defined() && has_rows && types_.back() == type) {
      own = unwritten_gradient_memory(parameter);
    }
    if (parameter.defined() && !own.defined()) {
      const at::TensorOptions options = x.options().dtype(type);
      result = has_rows ? at::empty({columns_of(x)}, options) : at::zeros({columns_of(x)}, options);
    }
    memory_.push_back(own.defined() ? own : result);
    results_.push_back(result);
  }
}

void add_rows(const float* x, int64_t rows, int64_t columns, float* sum) {
  kernels::ColumnSumArgs args;
  args.x = x;
  args.sum = sum;
  args.columns = columns;
  kernels::active_fused_kernels().column_sum(args, 0, rows);
}

} // namespace trireme::fused
