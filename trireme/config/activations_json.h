#pragma once

#include <trireme/config/key_check.h>
#include <trireme/memory/activations/options.h>

#include <nlohmann/json.hpp>

namespace trireme::config {

/// The section "activation_checkpointing".
activations::Options read_activations(const Values& values);
/// As it was read.
nlohmann::ordered_json to_json(const activations::Options& options);

} // namespace trireme::config
