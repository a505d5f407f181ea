#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// During its lifetime, tensors that this thread makes or moves are on the meta device: they have a shape and a type
/// but no memory, and operations on them take no time.
///
///   const MetaDeviceGuard guard;
///   torch::nn::Linear huge(100000, 100000); // 40 GB in microseconds
///
/// Overrides the device that the code asks for. Reading an element of such a tensor throws c10::Error.
class MetaDeviceGuard {
 public:
  MetaDeviceGuard();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// Counts the elements of the parameters that require a gradient; a shared one counts once.
int64_t count_parameters(const torch::nn::Module& module);

/// The same for the module that `make` makes, without allocating it if possible: a constructor that reads elements of
/// its tensors runs on a real device, and its module is freed. The random state does not change. Errors: exceptions of
/// `make`.
int64_t count_parameters(const std::function<std::shared_ptr<torch::nn::Module>()>& make);

/// Names of the parameters, in order; a shared one has its first name only. Of a module that `make` makes: as above.
std::vector<std::string> parameter_names(const torch::nn::Module& module);
std::vector<std::string> parameter_names(const std::function<std::shared_ptr<torch::nn::Module>()>& make);

} // namespace trireme::pipeline
