#pragma once

#include <trireme/parallel/tensor/ranks.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::tensor {

/// enter() and at::linear() in one: x [B, T, in], or [B, T/N, in] where the sequence is split -> x W^T + b [B, T, rows
/// of W]. `bias` may be undefined.
///
/// Backward exchanges while it computes: the gradient of x travels while that of W is computed, and where the sequence
/// is split, its parts are gathered again for that instead of being kept: [B, T/N, in] is all that is kept of x. Cost:
/// enter()'s, and where the sequence is split one more gather.
at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Ranks& ranks);

/// The same for several layers of one x (queries, keys and values; gate and up): x is exchanged once for all of them,
/// and so is its gradient. `biases`: none, or one for each weight.
std::vector<at::Tensor> column_linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                       const Ranks& ranks);

/// at::linear() and leave() in one: this rank's features x [B, T, part of in] -> the sum of x W^T over the ranks, [B,
/// T, rows of W] or [B, T/N, rows of W]. Large results are computed and summed up in pieces, the sum of one while the
/// next is computed. Cost: leave()'s.
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const Ranks& ranks);

} // namespace trireme::tensor
