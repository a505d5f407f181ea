#pragma once

#include <trireme/fp8/options.h>
#include <trireme/parallel/tensor/ranks.h>

#include <ATen/core/Tensor.h>

#include <vector>

/// Products of linear layers. `fp8`: not null for products in FP8 (fp8/linear.h), whose exchanges are those of enter()
/// and leave(): they do not overlap with products, and of a split sequence all of x is kept.
namespace trireme::tensor {

/// at::linear(x, weight, bias), all on this rank, by the fastest product (fused::linear()). `bias` may be undefined.
at::Tensor whole_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                        const fp8::Options* fp8 = nullptr);

/// enter() and at::linear() in one: x [B, T, in], or [B, T/N, in] if the sequence is split -> x W^T + b [B, T, rows of
/// W]. `bias` may be undefined.
///
/// Backward overlaps: the gradient of x is exchanged while that of W is computed. If the sequence is split, its parts
/// are gathered again in backward, so only [B, T/N, in] is kept of x. Cost: enter()'s, and one more gather if the
/// sequence is split.
at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Ranks& ranks,
                         const fp8::Options* fp8 = nullptr);

/// The same for several layers of one x (queries, keys and values; gate and up): x and its gradient are exchanged once
/// for all of them. `biases`, `fp8`: none, or one per weight.
std::vector<at::Tensor> column_linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                       const Ranks& ranks, const std::vector<const fp8::Options*>& fp8 = {});

/// at::linear() and leave() in one: this rank's features x [B, T, part of in] -> the sum of x W^T over the ranks, [B,
/// T, rows of W] or [B, T/N, rows of W]. Large results are computed in pieces; one is summed while the next is
/// computed. Cost: leave()'s.
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const Ranks& ranks,
                      const fp8::Options* fp8 = nullptr);

} // namespace trireme::tensor
