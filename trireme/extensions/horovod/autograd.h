#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme::horovod {

/// Gives the gradients of the inputs, from those of all outputs. May call operations that have gradients themselves.
using Backward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& gradients)>;

/// Whether autograd follows one of them now.
bool follows(const std::vector<at::Tensor>& tensors);

/// Returns `outputs`, which an operation made of `inputs`, as what autograd computed from them: its backward calls
/// `backward`, with zeros for outputs that nothing was made of.
std::vector<at::Tensor> with_gradient(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                      Backward backward);

} // namespace trireme::horovod
