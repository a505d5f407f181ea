#pragma once

#include <trireme/parallel/tensor/ranks.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::tensor {

/// at::linear(x, weight, bias), all on this rank, by the fastest product (fused::linear()). `bias` may be undefined.
at::Tensor whole_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// enter() and at::linear() in one: x [B, T, in], or [B, T/N, in] if the sequence is split -> x W^T + b [B, T, rows of
/// W]. `bias` may be undefined.
///
/// Backward overlaps: the gradient of x is exchanged while that of W is computed. If the sequence is split, its parts
/// are gathered again in backward, so only [B, T/N, in] is kept of x. Cost: enter()'s, and one more gather if the
/// sequence is split.
at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Ranks& ranks);

/// The same for several layers of one x (queries, keys and values; gate and up): x and its gradient are exchanged once
/// for all of them. `biases`: none, or one per weight.
std::vector<at::Tensor> column_linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                       const Ranks& ranks);

/// at::linear() and leave() in one: this rank's features x [B, T, part of in] -> the sum of x W^T over the ranks, [B,
/// T, rows of W] or [B, T/N, rows of W]. Large results are computed in pieces; one is summed while the next is
/// computed. Cost: leave()'s.
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const Ranks& ranks);

} // namespace trireme::tensor
