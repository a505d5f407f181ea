#pragma once

#include <trireme/models/options.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

// adapter_config.json in folders of Hugging Face's PEFT; its values: models/adapter_files.h.
namespace trireme::config {

struct ModelConfig;

/// Its name in a folder.
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// Reads FOLDER/adapter_config.json: rank, alpha, dropout, and which of the model's linear layers it adapts. Keys that
/// say nothing about what the adapters compute are ignored. Errors: InputError with file, line and column for a key
/// that asks for what is not here (DoRA, biases, ranks by layer, layers in full other than a new head), and for targets
/// of which this model has none.
models::LoraOptions read_adapter_config(const std::filesystem::path& folder,
                                        const std::vector<models::LayerShape>& shapes);

/// The base model that FOLDER/adapter_config.json names: a path, or a name on Hugging Face's hub; "" for none. Errors:
/// InputError if it cannot be read.
std::string base_of_adapter(const std::filesystem::path& folder);
/// The same if it ends with another name than the folder `model`; else "".
std::string other_base_of_adapter(const std::filesystem::path& folder, const std::filesystem::path& model);

/// The same file's content for the adapters of `model`. `base`: folder of the base model.
nlohmann::ordered_json write_adapter_config(const ModelConfig& model, const std::string& base);

} // namespace trireme::config
