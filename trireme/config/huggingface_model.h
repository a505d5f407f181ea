#pragma once

#include <trireme/base/json.h>
#include <trireme/models/options.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::config {

/// A model as config.json of a Hugging Face folder describes it.
struct HuggingFaceModel {
  models::TransformerShape::Family family = models::TransformerShape::Family::gpt;
  /// Set for the family; init_from is the folder.
  models::GptOptions gpt;
  models::LlamaOptions llama;
  models::BertOptions bert;
  /// Keys that are not known here and were ignored.
  std::vector<std::string> notes;
};

/// Reads FOLDER/config.json: model_type gpt2, llama, mistral, qwen2, qwen3 or bert. sequence_length is that of the
/// positions for a gpt2 and a bert, else at most kDefaultSequence. Errors: InputError with file, line and column for a
/// model_type or a value that no model here computes.
HuggingFaceModel read_huggingface_model(const std::filesystem::path& folder);

/// Tokens of a sample where neither the run file nor learned positions say it.
inline constexpr int64_t kDefaultSequence = 1024;

/// Reads config.json's rope_scaling (or rope_parameters): rope_type default, linear, dynamic, llama3 or yarn, and its
/// values. Errors: InputError for another type, or a missing or impossible value.
models::RopeScaling read_rope_scaling(const JsonNode& object);

/// The same as config.json has it; null for none.
nlohmann::ordered_json write_rope_scaling(const models::RopeScaling& scaling);

/// Writes a model as config.json: that of the folder it came from (`base`, or an empty object) with this model's
/// values. The llama's architecture is the first of llama, mistral, qwen2 and qwen3 that computes it. Errors:
/// InputError if none does, naming the keys.
nlohmann::ordered_json write_huggingface_model(const models::LanguageOptions& options,
                                               const nlohmann::ordered_json& base);
/// Writes a bert with the head masked_lm or classes. Names of classes are those of `base` if it has as many, else
/// LABEL_0 and so on, as transformers has it.
nlohmann::ordered_json write_huggingface_model(const models::BertOptions& options, const nlohmann::ordered_json& base);

} // namespace trireme::config
