#pragma once

#include <trireme/base/error.h>
#include <trireme/kernels/fused_kernels.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

// Shared by the operations of this folder: checks of tensors, and distribution of rows over threads.

namespace trireme::fused {

/// Whether the kernels support these tensors: all on the CPU, fp32 or bf16; undefined ones do not count.
bool usable(std::initializer_list<at::Tensor> tensors);

/// Argument of an autograd function: undefined tensors have no edge.
inline std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

inline kernels::Element element_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? kernels::Element::bf16 : kernels::Element::f32;
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

/// Zeros [blocks, columns] for summed_rows(), and their sum.
at::Tensor partial_sums(int64_t blocks, int64_t columns);
at::Tensor add_up(const at::Tensor& partial);

/// Sums over rows: calls f(begin, end, partial sums) for blocks of rows. The blocks depend on the shape alone,
/// so the order of additions does not depend on the number of threads. Returns the kSums sums, fp32 [columns]
/// each.
template <size_t kSums, class F>
std::array<at::Tensor, kSums> summed_rows(int64_t rows, int64_t columns, const F& f) {
  const int64_t block = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t blocks = (rows + block - 1) / block;
  std::array<at::Tensor, kSums> partial;
  for (at::Tensor& sums : partial) {
    sums = partial_sums(blocks, columns);
  }
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      std::array<float*, kSums> at;
      for (size_t i = 0; i < kSums; ++i) {
        at[i] = partial[i].template mutable_data_ptr<float>() + b * columns;
      }
      f(b * block, std::min(rows, (b + 1) * block), at);
    }
  });
  std::array<at::Tensor, kSums> sums;
  std::transform(partial.begin(), partial.end(), sums.begin(), add_up);
  return sums;
}

} // namespace trireme::fused
