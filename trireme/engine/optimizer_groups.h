#pragma once

#include <trireme/engine/parameter_groups.h>
#include <trireme/engine/parts.h>
#include <trireme/optim/options.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme::engine {

/// Says which options each trained parameter has, by the name of its tensor. `complete`: every one must be in a group.
/// Errors: InputError for a group that cannot choose, or that has a tensor of another model.
optim::FlatOptimizer::OptionsOf options_of(const Parts& parts, const std::vector<ParameterGroup>& groups,
                                           const optim::OptimizerOptions& optimizer, bool complete);

/// A torch optimizer in our words. Its largest lr is the optimizer's, and the groups' factors are of that.
struct TorchOptimizer {
  optim::OptimizerOptions options;
  std::vector<ParameterGroup> groups;
};
/// Errors: InputError for a class that has no kernel here, amsgrad, groups that differ in more than lr and weight
/// decay, or one that has stepped.
TorchOptimizer read_torch_optimizer(const torch::optim::Optimizer& optimizer);

} // namespace trireme::engine
