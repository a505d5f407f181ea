#pragma once

#include <trireme/models/options.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Adapters in folders of Hugging Face's PEFT: adapter_model.safetensors. adapter_config.json: config/adapter_config.h.
namespace trireme::models {

/// The file of the values in such a folder.
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";

/// "base_model.model." and the parameter's name, as in the file.
std::string name_in_adapter_file(const std::string& parameter);
/// Whether a tensor has such a name: no model's own tensor does.
bool is_name_in_adapter_file(std::string_view tensor);

/// Returns a function that fills a full parameter that `lora` trains from the folder lora.init_from. Cost: nothing is
/// read until it is called. Errors: InputError when the file's tensors are not exactly those in `shapes`, with their
/// sizes: then it belongs to another base model, rank or targets.
std::function<void(const std::string& name, const at::Tensor& parameter)> adapter_values(
    const LoraOptions& lora, const std::vector<LayerShape>& shapes);

/// A tensor to be written, by its name in the model: of an adapter, or of a layer trained in full beside them.
struct AdapterTensor {
  std::string name;
  at::Tensor value;
};

/// Writes the values into a folder, which must exist. Errors: those of checkpoint::write_safetensors().
void save_adapter(const std::vector<AdapterTensor>& tensors, const std::filesystem::path& folder);

} // namespace trireme::models
