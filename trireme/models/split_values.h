#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::models {

/// Calls fill(name, parameter) for each parameter of `module`, which the whole model calls `prefix`, with the whole
/// parameter also where this rank has a part of it (tensor::SplitModule), so that first values do not depend on the
/// number of ranks. Memory: one whole parameter at a time.
void fill_values(const std::string& prefix, const torch::nn::Module& module,
                 const std::function<void(const std::string& name, const at::Tensor& parameter)>& fill);

} // namespace trireme::models
