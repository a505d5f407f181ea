#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::engine {

/// While it lives, no other engine may be made to train these parameters: it would take their memory and hooks over.
class ClaimedModel {
 public:
  /// Errors: InputError naming a parameter that another engine has.
  explicit ClaimedModel(const torch::nn::Module& model);
  ~ClaimedModel();
  ClaimedModel(const ClaimedModel&) = delete;
  ClaimedModel& operator=(const ClaimedModel&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
};

} // namespace trireme::engine
