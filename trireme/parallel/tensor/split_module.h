#pragma once

#include <trireme/bucket/flat_layout.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace trireme::tensor {

/// A module of which each rank has a part.
class SplitModule {
 public:
  virtual ~SplitModule() = default;
  /// Which part of the whole this rank has of the module's own parameters and buffers, by name. Others are whole on
  /// every rank.
  virtual std::map<std::string, bucket::Placement> placements() const = 0;
};

/// The same for all modules within `model`, by TensorImpl.
using Placements = std::map<const void*, bucket::Placement>;
Placements placements_of(const torch::nn::Module& model);

/// Views the part of `whole` that `placement` describes, for a parameter of these sizes.
at::Tensor box_of(const at::Tensor& whole, const bucket::Placement& placement, at::IntArrayRef sizes);

} // namespace trireme::tensor
