#pragma once

#include <trireme/models/options.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace trireme::generate {

/// Fills a full parameter, given its name.
using ReadParameter = std::function<void(const std::string& name, const at::Tensor& value)>;

/// Adds scale * B A to the weight of an adapted layer, so that the plain model computes the same without adapters;
/// leaves other parameters as they are. `weight`: full, fp32; `read` is asked for A and B. Cost: a product of B
/// [out, rank] and A [rank, in].
void merge_adapter(const std::string& name, const at::Tensor& weight, const models::LoraOptions& lora,
                   const ReadParameter& read);

} // namespace trireme::generate
