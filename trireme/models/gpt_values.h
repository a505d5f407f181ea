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

/// Gives the parameters of a GPT their first values, whatever part of it is built, on whatever rank: those of
/// options.init_from (safetensors of Hugging Face's GPT-2 or a checkpoint of Trireme), or random ones from a generator
/// for each parameter, seeded by (seed, name). Normal(0, 0.02), residual projections by 1/sqrt(2 layers), as GPT-2.
class GptValues {
 public:
  /// Errors: InputError when heads do not divide hidden, or init_from cannot be read, holds a tensor that the model has
  /// no place for, or is one rank's file of a
  ///         checkpoint.
  explicit GptValues(const GptOptions& options);
  /// For the parameters of `module`, which the whole model calls `prefix`. Errors: InputError naming a tensor that it
  /// lacks.
  void fill(const std::string& prefix, const torch::nn::Module& module) const;

 private:
  void fill_whole(const std::string& name, const at::Tensor& parameter) const;
  void fill_one(const std::string& name, const at::Tensor& parameter) const;

  GptOptions options_;
  std::shared_ptr<const checkpoint::WeightFiles> files_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
};

} // namespace trireme::models
