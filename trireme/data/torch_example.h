#pragma once

#include <trireme/data/batch.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <torch/data/example.h>

#include <concepts>
#include <vector>

// What torch::data makes, as a Batch.
namespace trireme::data::detail {

template <typename Target>
constexpr bool has_target() {
  static_assert(std::convertible_to<Target, at::Tensor> || std::same_as<Target, torch::data::example::NoTarget>,
                "torch::data: a sample's target must be a tensor, or absent");
  return std::convertible_to<Target, at::Tensor>;
}
// A transform's collated batch, or single samples.
template <typename Data, typename Target>
Batch batch_of(const torch::data::Example<Data, Target>& example) {
  Batch batch{{example.data}, {}, 0};
  if constexpr (has_target<Target>()) {
    batch.targets = {example.target};
  }
  return batch;
}
template <typename Data, typename Target>
Batch batch_of(const std::vector<torch::data::Example<Data, Target>>& examples) {
  std::vector<at::Tensor> inputs, targets;
  for (const auto& example : examples) {
    inputs.push_back(example.data);
    if constexpr (has_target<Target>()) {
      targets.push_back(example.target);
    }
  }
  Batch batch{{at::stack(inputs)}, {}, 0};
  if (!targets.empty()) {
    batch.targets = {at::stack(targets)};
  }
  return batch;
}

} // namespace trireme::data::detail
