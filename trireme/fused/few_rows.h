#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// The product of few rows with weights that memory gives slower than processors multiply.
namespace trireme::fused {

/// Whether few_rows() is faster: only in c10::InferenceMode, for few rows of x.
bool is_few_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// linear() of one x with several weights, one undefined or defined bias each, in one parallel region. Requires
/// is_few_rows() of each.
std::vector<at::Tensor> few_rows(const at::Tensor& x, at::TensorList weights, at::TensorList biases);

} // namespace trireme::fused
