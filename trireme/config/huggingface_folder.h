#pragma once

#include <trireme/base/json.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/run_file.h>
#include <trireme/config/run_paths.h>

#include <filesystem>
#include <optional>

// "model": {"from": FOLDER} in run files: a Hugging Face folder.
namespace trireme::config {

/// What data::make_tokenizer() reads from a Hugging Face folder: tokenizer.json, vocab.json or encoder.json. Empty if
/// it has none.
std::filesystem::path tokenizer_in(const std::filesystem::path& folder);

/// Reads the model of the folder that "from" in the section "model" names, if it does, and adds its notes to those of
/// `run`. Errors: InputError with the key's place for a folder without config.json; those of read_huggingface_model().
std::optional<HuggingFaceModel> read_from(const JsonNode& model, const RunPaths& paths, RunConfig& run);

/// If a run file's model has "from", says its "type", and names the folder's tokenizer (tokenizer.json, or vocab.json
/// with merges.txt) for data of tokens or text that names none. Errors: InputError for a folder that cannot be read,
/// for another "type" than its, and for text whose tokenizer nobody names.
void apply_model_from(JsonNode& root, const RunPaths& paths);

} // namespace trireme::config
