#pragma once

#include <trireme/fp8/options.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::fp8 {

/// Whether a weight [out, in] can be a factor of FP8 products on every device: both sizes are multiples of 16.
bool fits(const at::Tensor& weight);

/// at::linear(x, weight, bias) of several layers of one x, computed in FP8 forward and backward: x [..., in], weights
/// [out, in] of bf16 or fp32 that fits(), biases none or one per weight. Results are bf16.
///
/// With W and the gradient dY of Y, by recipe:
///   Y  = x W^T    tensorwise: e4m3 e4m3    rowwise: e4m3 e4m3    rowwise_with_gw_hp: e4m3 e4m3
///   dx = dY W                 e5m2 e4m3             e4m3 e4m3         e4m3 e4m3 (W: one scale)
///   dW = dY^T x               e5m2 e4m3             e4m3 e4m3         bf16 bf16
/// A row of a factor is what one element of the product sums over. Scales are those of the values at hand ("dynamic",
/// or "current" scaling). On several tensor-parallel ranks they are those of the rank's part.
///
/// Kept for backward: x in bf16 and the weights; both are quantised again. Cost: two passes over each factor beside the
/// products. Double backward (create_graph) throws an Error.
std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                const Options& options);

} // namespace trireme::fp8
