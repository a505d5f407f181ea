#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace trireme::config {

/// Writes the JSON Schema (draft 2020-12) of run files, engine section included:
/// docs/run.schema.json. Editors use it to complete and check.
nlohmann::ordered_json run_schema();

/// Writes docs/configuration.md, the page that lists every key and how it is treated.
std::string configuration_page();

} // namespace trireme::config
