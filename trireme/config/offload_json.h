#pragma once

#include <trireme/config/key_check.h>
#include <trireme/memory/offload/options.h>

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace trireme::config {

/// Reads "offload_optimizer" and "offload_param" of "zero_optimization", and "aio". A section whose device is "none" or
/// "auto" asks for nothing: what else is in it counts as its default. `moves_activations`: there are files of
/// activations. Adds a sentence to `notes` for keys that only files need, where there are none. Errors: InputError for
/// nvme without nvme_path, offload_param below stage 3, and values that exclude each other.
offload::Options read_offload(const Values& engine, bool moves_activations, std::vector<std::string>& notes);

/// Under DeepSpeed's names, defaults included.
nlohmann::ordered_json to_json(const offload::OptimizerOptions& options);
nlohmann::ordered_json to_json(const offload::ParameterOptions& options);
nlohmann::ordered_json to_json(const aio::Options& options);

} // namespace trireme::config
