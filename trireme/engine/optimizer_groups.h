#pragma once

#include <trireme/engine/parameter_groups.h>
#include <trireme/engine/parts.h>
#include <trireme/optim/options.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::engine {

/// Returns the options of each trained parameter, by the name of its tensor. With `complete`, every parameter must be
/// in a group. Errors: InputError for a group without a way to choose, or with a tensor of another model.
optim::FlatOptimizer::OptionsOf options_of(const Parts& parts, const std::vector<ParameterGroup>& groups,
                                           const optim::OptimizerOptions& optimizer, bool complete);

/// A torch optimizer as options of this library. `lr` is the largest of its groups; their factors are relative to it.
struct TorchOptimizer {
  optim::OptimizerOptions options;
  std::vector<ParameterGroup> groups;
};
/// Errors: InputError for a class without a kernel, amsgrad, groups that differ in more than lr and weight decay, or an
/// optimizer that has stepped.
TorchOptimizer read_torch_optimizer(const torch::optim::Optimizer& optimizer);

} // namespace trireme::engine
