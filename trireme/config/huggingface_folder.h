#pragma once

#include <trireme/base/json.h>
#include <trireme/config/run_paths.h>

#include <filesystem>

// "model": {"from": FOLDER} in run files: a Hugging Face folder.
namespace trireme::config {

/// The folder that "from" in the section "model" names. Errors: InputError with its place if it has no config.json.
std::filesystem::path folder_of(const JsonNode& model, const RunPaths& paths);

/// If a run file's model has "from", says its "type", and names the folder's tokenizer.json for data of tokens or text
/// that names none. Errors: InputError for a folder that cannot be read, and for another "type" than its.
void apply_model_from(JsonNode& root, const RunPaths& paths);

} // namespace trireme::config
