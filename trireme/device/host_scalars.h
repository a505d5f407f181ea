#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::device {

/// Reads float64 tensors of one element each, all on one device: one small copy into pinned memory and one wait of the host, however many
/// there are. An undefined tensor reads as 0. On the CPU nothing is copied.
std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars);

/// Adds a loss (one element, any type) to a float64 sum on its device, without waiting for it. The sum may be undefined before.
void add_scalar(at::Tensor& sum, const at::Tensor& value);

} // namespace trireme::device
