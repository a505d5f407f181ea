#pragma once

#include <trireme/models/options.h>

#include <memory>
#include <set>
#include <string>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}
namespace trireme::checkpoint {
class Checkpoint;
class WeightFiles;
} // namespace trireme::checkpoint

namespace trireme::models {

/// Names of all parameters of a Gpt.
std::set<std::string> gpt_parameter_names(const GptOptions& options);

/// Initialises the parameters of a GPT, whatever part of it is built, on whatever rank. Values are those of
/// options.init_from (safetensors of Hugging Face's GPT-2 or a checkpoint of Trireme), or random ones from a generator
/// per parameter, seeded by (seed, name): Normal(0, 0.02), residual projections times 1/sqrt(2 layers), as GPT-2.
class GptValues {
 public:
  /// Errors: InputError when heads do not divide hidden, or init_from cannot be read, holds a tensor that the model has
  /// no place for, or is one rank's file of a
  ///         checkpoint.
  explicit GptValues(const GptOptions& options);
  /// Fills the parameters of `module`, called `prefix` in the full model. Errors: InputError naming a missing
  /// tensor.
  void fill(const std::string& prefix, const torch::nn::Module& module) const;

 private:
  void fill_whole(const std::string& name, const at::Tensor& parameter) const;
  void fill_one(const std::string& name, const at::Tensor& parameter) const;

  GptOptions options_;
  std::shared_ptr<const checkpoint::WeightFiles> files_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
};

} // namespace trireme::models
