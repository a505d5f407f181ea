#pragma once

#include <trireme/base/error.h>
#include <trireme/fused/gradient_home.h>
#include <trireme/fused/row_kernels.h>
#include <trireme/kernels/fused_kernels.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

// Shared by the operations of this folder: checks of tensors, and distribution of rows over threads.

namespace trireme::fused {

/// Whether the CPU's kernels support these tensors: all on the CPU, fp32 or bf16; undefined ones do not count.
bool usable(std::initializer_list<at::Tensor> tensors);

/// The row kernels of the one device of these tensors, fp32 or bf16; undefined ones do not count. nullptr: there are
/// none, or the tensors are others.
const RowKernels* row_kernels(std::initializer_list<at::Tensor> tensors);

/// Argument of an autograd function: undefined tensors have no edge.
inline std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

inline kernels::Element element_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? kernels::Element::bf16
         : tensor.scalar_type() == at::kHalf   ? kernels::Element::f16
                                               : kernels::Element::f32;
}

inline kernels::HeadStrides strides_of(const at::Tensor& x_BATD) {
  return {x_BATD.stride(0), x_BATD.stride(1), x_BATD.stride(2)};
}

/// The last dim, and the number of rows.
inline int64_t columns_of(const at::Tensor& tensor) {
  return tensor.size(-1);
}
inline int64_t rows_of(const at::Tensor& tensor) {
  return columns_of(tensor) == 0 ? 0 : tensor.numel() / columns_of(tensor);
}

/// fp32 on x's device, without values.
inline at::Tensor floats_like(const at::Tensor& x, at::IntArrayRef sizes) {
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

/// Weights, shifts and biases as row kernels read them, with memory for their gradients.
class Parameters {
 public:
  /// For rows like x. Those that are undefined stay so. Cost: copies where types differ, or are others than x's.
  Parameters(const at::Tensor& x, std::initializer_list<at::Tensor> parameters);

  kernels::Element element() const { return type_ == at::kBFloat16 ? kernels::Element::bf16 : kernels::Element::f32; }
  /// nullptr: undefined.
  const void* data(size_t which) const {
    return parameters_[which].defined() ? parameters_[which].const_data_ptr() : nullptr;
  }

 private:
  std::vector<at::Tensor> parameters_;
  at::ScalarType type_;
};

/// Memory that a row kernel writes gradients of parameters to, [columns of x] each: their own where they have any.
class ParameterGradients {
 public:
  /// Those that are undefined are not computed. Zeros if x has no rows.
  ParameterGradients(const at::Tensor& x, kernels::Element element, std::initializer_list<at::Tensor> parameters);

  /// nullptr: not computed.
  void* data(size_t which) const { return memory_[which].defined() ? memory_[which].mutable_data_ptr() : nullptr; }
  /// What backward returns, in the parameter's type; undefined: not computed, or in place already.
  at::Tensor result(size_t which) const {
    return results_[which].defined() ? results_[which].to(types_[which]) : at::Tensor();
  }

 private:
  std::vector<at::Tensor> memory_, results_;
  std::vector<at::ScalarType> types_;
};

/// Throws if backward runs with create_graph; called first in every backward.
void refuse_create_graph(const char* operation,
                         const char* next = "Set TRIREME_SIMD=scalar to run on ATen's operations, which can.");

/// Throws unless the parameter's shape is [columns].
void check_parameter(const char* operation, const char* name, const at::Tensor& parameter, int64_t columns);

/// Throws unless x and the residual have one shape.
void check_residual(const char* operation, const at::Tensor& x, const at::Tensor& residual);

/// Calls f(begin, end) for ranges of rows on all threads.
template <class F>
void parallel_rows(int64_t rows, int64_t columns, const F& f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1)), f);
}

/// Adds the rows of x [rows, columns] to sum [columns], in order.
void add_rows(const float* x, int64_t rows, int64_t columns, float* sum);

} // namespace trireme::fused
