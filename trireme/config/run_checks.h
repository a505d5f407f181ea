#pragma once

#include <trireme/base/json.h>
#include <trireme/config/run_types.h>

#include <nlohmann/json_fwd.hpp>

namespace trireme::config {

/// Checks keys that depend on each other, fills in values that follow from another key
/// (vocab_size of the tokenizer "bytes") and adds to run.notes.
/// Errors: InputError that names both places.
void check_run(const JsonNode& root, const JsonNode& engine, const RunType& model, RunConfig& run);

/// Writes `run`, whose sections have these types, as a run file.
nlohmann::ordered_json write_out(const RunConfig& run, const RunType& model, const RunType& data);

} // namespace trireme::config
