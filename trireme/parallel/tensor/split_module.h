#pragma once

#include <trireme/shards/bucket/flat_layout.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::tensor {

/// A module that is split over the ranks.
class SplitModule {
 public:
  virtual ~SplitModule() = default;
  /// Placements of this rank's parts of the module's own parameters and buffers, by name. All others are not
  /// split.
  virtual std::map<std::string, bucket::Placement> placements() const = 0;
};

/// Placements of all modules within `model`, by TensorImpl.
using Placements = std::map<const void*, bucket::Placement>;
Placements placements_of(const torch::nn::Module& model);

/// A view of the part of `whole` that `placement` describes, for a parameter of these sizes.
at::Tensor box_of(const at::Tensor& whole, const bucket::Placement& placement, at::IntArrayRef sizes);

} // namespace trireme::tensor
