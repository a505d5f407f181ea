#include <trireme/config/huggingface_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/path.h>
#include <trireme/config/adapter_config.h>

#include <filesystem>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;

bool has_text(const JsonNode* node, std::string_view text) {
  return node != nullptr && node->kind() == JsonNode::Kind::string && node->as_string() == text;
}

fs::path folder_of(const JsonNode& from, const RunPaths& paths) {
  constexpr const char* kNext =
      "Name a folder of this machine: Trireme downloads nothing, \"hf download\" of Hugging Face does. "
      "A relative path starts at the folder of the run file.";
  const fs::path folder = without_end_slash(paths.one(from, from.as_string(), kNext));
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) { // other files may be absent where nothing trains
    from.fail(concat("there is no file ", folder.string()), kNext);
  }
  if (fs::is_regular_file(folder, ignored)) {
    from.fail(concat(folder.string(), " is a file"), concat("Name its folder, ", folder.parent_path().string(), '.'));
  }
  if (!fs::exists(folder / "config.json", ignored) && fs::exists(folder / kAdapterConfig, ignored)) {
    from.fail(concat(folder.string(), " has adapters of PEFT, not a model"),
              "Name their base model here, and their folder as model.adapter.");
  }
  if (!fs::exists(folder / "config.json", ignored)) {
    from.fail(concat("there is no ", (folder / "config.json").string(), ", which a Hugging Face folder has"),
              "Name the folder that holds config.json, the weights and tokenizer.json.");
  }
  return folder;
}

} // namespace

fs::path tokenizer_in(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json"}) { // the latter two with their merges
    if (fs::is_regular_file(folder / name, ignored)) {
      return folder / name;
    }
  }
  return {};
}

std::optional<HuggingFaceModel> read_from(const JsonNode& model, const RunPaths& paths, RunConfig& run) {
  const JsonNode* from = model.find("from");
  if (from == nullptr || from->is_null()) {
    return std::nullopt;
  }
  HuggingFaceModel read = read_huggingface_model(folder_of(*from, paths));
  run.notes.insert(run.notes.end(), read.notes.begin(), read.notes.end());
  return read;
}

void apply_model_from(JsonNode& root, const RunPaths& paths) {
  const JsonNode* model = root.is_object() ? root.find("model") : nullptr;
  const JsonNode* from = model != nullptr && model->is_object() ? model->find("from") : nullptr;
  if (from == nullptr || from->is_null()) {
    return;
  }
  const fs::path folder = folder_of(*from, paths);
  using Family = models::TransformerShape::Family;
  const Family family = read_huggingface_model(folder).family;
  const std::string type = family == Family::llama ? "llama" : family == Family::bert ? "bert" : "gpt";
  if (const JsonNode* said = model->find("type"); said != nullptr && said->as_string() != type) {
    said->fail(
        concat('"', said->as_string(), "\" is not what ", (folder / "config.json").string(), " describes, a ", type),
        "Leave \"type\" out.");
  }
  root.set("model.type", type);
  const JsonNode* data = root.find("data");
  if (data == nullptr || !data->is_object() || data->find("tokenizer") != nullptr) {
    return;
  }
  const bool is_text = has_text(data->find("type"), "text") || has_text(data->find("type"), "jsonl") ||
                       has_text(data->find("type"), "labelled_text");
  if (!is_text && !has_text(data->find("type"), "tokens") && !has_text(data->find("type"), "mixture")) {
    return;
  }
  if (const fs::path tokenizer = tokenizer_in(folder); !tokenizer.empty()) {
    root.set("data.tokenizer", tokenizer.string());
  } else if (is_text) {
    data->fail(concat("\"tokenizer\" is missing, and ", folder.string(),
                      " has none (tokenizer.json, or vocab.json and "
                      "merges.txt)"),
               "Name the tokenizer of these weights.");
  }
}

} // namespace trireme::config
