#pragma once

#include <trireme/models/options.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

struct HuggingFaceFamily;

/// "transformer.h.0.ln_1.weight" and so on; a tied head adds none.
std::set<std::string> parameter_names(const std::vector<LayerShape>& shapes);

/// Initialises the parameters of a language model, whatever part of it is built, on whatever rank: from `init_from`
/// (safetensors with Hugging Face's names, or a checkpoint of Trireme), or at random.
class ModelValues {
 public:
  using Fill = std::function<void(const std::string& name, const at::Tensor& parameter)>;
  /// `random` fills a full parameter, the same on each rank; adapters also where `init_from` has none. Errors:
  /// InputError when init_from cannot be read, holds a tensor that the model has no place for, is one rank's file of
  /// a checkpoint, or has adapters beside those of LoraOptions::init_from; those of adapter_values() for
  /// LoraOptions::init_from.
  ModelValues(const HuggingFaceFamily& family, const std::vector<LayerShape>& shapes,
              const std::filesystem::path& init_from, const LoraOptions& lora, Fill random);
  /// Fills the parameters of `module`, called `prefix` in the full model, and reads no others. Errors: InputError
  /// naming a missing tensor, or one of another shape.
  void fill(const std::string& prefix, const torch::nn::Module& module) const;
  /// fill() as a function, for zero::Sharded. These values must outlive it.
  auto of(std::string prefix) const {
    return [this, prefix = std::move(prefix)](const torch::nn::Module& module) { fill(prefix, module); };
  }

 private:
  /// Reads from `init_from` what it has.
  void read_from(const HuggingFaceFamily& family, const std::vector<LayerShape>& shapes,
                 const std::filesystem::path& init_from, const LoraOptions& lora);

  Fill fill_;
};

} // namespace trireme::models
