#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::models {

/// Calls fill(name, full parameter) for each parameter of `module`, called `prefix` in the full model, also if this
/// rank has only a part of it (tensor::SplitModule). So initial values do not depend on the number of ranks. Memory:
/// one full parameter at a time.
void fill_values(const std::string& prefix, const torch::nn::Module& module,
                 const std::function<void(const std::string& name, const at::Tensor& parameter)>& fill);

} // namespace trireme::models
