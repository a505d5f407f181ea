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

/// Notices what a program may do to a model after initialize() so that a part of it would no longer be trained, without
/// a word.
class UnchangedModel {
 public:
  /// `buffers` have moved their parameters in, and outlive this.
  UnchangedModel(const torch::nn::Module& model, std::vector<const bucket::FlatParameters*> buffers);

  /// Errors: InputError that names a parameter which has other memory than the engine's (torch::load(), to(),
  /// set_data()), or one that was frozen and requires a gradient now. Cost: a comparison of pointers for each
  /// parameter.
  void check() const;

 private:
  std::vector<const bucket::FlatParameters*> buffers_;
  bucket::NamedTensors frozen_;
};

} // namespace trireme::engine
