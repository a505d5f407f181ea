#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::fused {

/// Writes x W^T to y [rows, V], of any row stride: x [rows, C], weight [V, C], all of one type. In blocks of outputs
/// where MKL computes those faster (linear()).
void multiply_into(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight);

} // namespace trireme::fused
