#pragma once

#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/options.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
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

/// Returns a function that fills a full parameter that `lora` trains from the folder lora.init_from. `base` reads the
/// base model's weights. Cost: up to four weights of the base model; of the adapters nothing until it is called.
/// Errors: InputError when the file's tensors are not exactly those in `shapes`, with their sizes: then it belongs to
/// another base model, rank or targets; and when it has a sample of its base model that `base` does not agree with.
FillParameter adapter_values(const LoraOptions& lora, const std::vector<LayerShape>& shapes, const FillParameter& base);

/// Whether the folder has a sample of its base model. PEFT writes none.
bool has_base_sample(const std::filesystem::path& folder);

/// A tensor to be written, by its name in the model: of an adapter, or of a layer trained in full beside them.
struct AdapterTensor {
  std::string name;
  at::Tensor value;
};

/// Values of the base model at eight places of up to four adapted weights. They tell base models of the same shapes
/// apart, in whatever floating-point type. One number a word; "" without adapters.
std::string sample_base(const std::vector<LayerShape>& shapes, const FillParameter& base);

/// Writes the values into a folder, which must exist. `base_sample`: from sample_base(), kept in the file's metadata,
/// which PEFT ignores. Errors: those of checkpoint::write_safetensors().
void save_adapter(const std::vector<AdapterTensor>& tensors, const std::filesystem::path& folder,
                  const std::string& base_sample = "");

} // namespace trireme::models
