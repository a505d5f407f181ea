#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::engine {

/// Claims a model's parameters for one engine during its lifetime. A second engine would take over their memory and
/// hooks.
class ClaimedModel {
 public:
  /// Errors: InputError naming a parameter that another engine trains.
  explicit ClaimedModel(const torch::nn::Module& model);
  ~ClaimedModel();
  ClaimedModel(const ClaimedModel&) = delete;
  ClaimedModel& operator=(const ClaimedModel&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
};

} // namespace trireme::engine
