#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme::horovod {

/// Returns the gradients of the inputs from those of all outputs. May call differentiable operations.
using Backward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& gradients)>;

/// Whether autograd currently records an operation on one of them.
bool follows(const std::vector<at::Tensor>& tensors);

/// Returns `outputs`, which an operation made of `inputs`, attached to autograd's graph. Their backward calls
/// `backward`, with zeros for outputs without a gradient.
std::vector<at::Tensor> with_gradient(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                      Backward backward);

} // namespace trireme::horovod
