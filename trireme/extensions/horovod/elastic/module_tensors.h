#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::horovod::elastic {

/// The parameters and buffers of modules, detached, under the modules' names.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(
    const std::vector<std::pair<std::string, torch::nn::Module*>>& modules);

} // namespace trireme::horovod::elastic
