#pragma once

#include <trireme/config/run_file.h>

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <filesystem>

namespace trireme::checkpoint {
class Checkpoint;
}

namespace trireme::generate {

/// The Hugging Face folder that a run began with. Errors: InputError if it began with something else: then its adapters
/// have no base model that PEFT can read.
std::filesystem::path base_folder_of(const config::RunConfig& run);

/// Writes the adapters of a checkpoint into `folder`, which exists, as PEFT has them: adapter_config.json and
/// adapter_model.safetensors, with the layers that were trained in full beside them (a bert's classifier). Returns
/// their number of elements. Memory: all adapters, in fp32 and in `dtype`. Errors: as base_folder_of().
int64_t export_adapter(const checkpoint::Checkpoint& saved, const config::RunConfig& run,
                       const config::ModelConfig& model, at::ScalarType dtype, const std::filesystem::path& folder);

} // namespace trireme::generate
