#pragma once

#include <trireme/models/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::models {

/// Gives the linear layers within `module`, called `name` in the full model, their adapters: those in LoraOptions.
void add_adapters(torch::nn::Module& module, const std::string& name, const LoraOptions& lora);

/// Fills an adapter's full matrix: A Kaiming-uniform from (seed, name), B with zeros.
void fill_adapter(const std::string& name, const at::Tensor& parameter, int64_t seed);

} // namespace trireme::models
