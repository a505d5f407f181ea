#pragma once

#include <trireme/config/key_check.h>
#include <trireme/precision/options.h>

#include <nlohmann/json_fwd.hpp>

namespace trireme::config {

/// Reads fp16, bf16, torch_autocast, fp8, communication_data_type and data_types of DeepSpeed's configuration, after
/// check_keys(). Errors: InputError for settings that contradict each other or are out of range; "file:line:column:
/// key.path: ...".
precision::PrecisionOptions read_precision(const Values& engine);

/// The section "bf16", or "bfloat16" in older files: the enabled one.
Values bf16_section(const Values& engine);

/// Adds the same keys to `out`, defaults included.
void write_precision(const precision::PrecisionOptions& options, nlohmann::ordered_json& out);

} // namespace trireme::config
