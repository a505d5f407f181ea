#pragma once

#include <trireme/models/options.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

// adapter_config.json in folders of Hugging Face's PEFT; its values: models/adapter_files.h.
namespace trireme::config {

/// Its name in a folder.
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// Reads FOLDER/adapter_config.json: rank, alpha, dropout, and which of `linear_names` it adapts. Keys that say nothing
/// about what the adapters compute are ignored. Errors: InputError with file, line and column for a key that asks for
/// what is not here (DoRA, biases, ranks by layer), and for targets of which this model has none.
models::LoraOptions read_adapter_config(const std::filesystem::path& folder,
                                        const std::vector<std::string>& linear_names);

/// The base model that FOLDER/adapter_config.json names: a path, or a name on Hugging Face's hub; "" for none. Errors:
/// InputError if it cannot be read.
std::string base_of_adapter(const std::filesystem::path& folder);

/// The same file's content. `base`: folder of the base model; `transposed`: its files have matrices as [in, out] (gpt).
nlohmann::ordered_json write_adapter_config(const models::LoraOptions& lora,
                                            const std::vector<std::string>& linear_names, const std::string& base,
                                            bool transposed);

} // namespace trireme::config
