#pragma once

#include <trireme/shards/bucket/flat_parameters.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::engine {

/// Detects changes to a model after initialize() that would silently stop the training of a part of it.
class UnchangedModel {
 public:
  /// `buffers` contain the model's parameters and must outlive this.
  UnchangedModel(const torch::nn::Module& model, std::vector<const bucket::FlatParameters*> buffers);

  /// Errors: InputError naming a parameter whose memory is not the engine's (after torch::load(), to(), set_data()), or
  /// a frozen one that requires a gradient now. Cost: a pointer comparison per parameter.
  void check() const;

 private:
  std::vector<const bucket::FlatParameters*> buffers_;
  bucket::NamedTensors frozen_;
};

} // namespace trireme::engine
