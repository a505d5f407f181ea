#include <trireme/generate/export_model.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/run_file.h>
#include <trireme/generate/model_files.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/huggingface_families.h>
#include <trireme/models/huggingface_weights.h>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <nlohmann/json.hpp>

#include <set>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// What transformers calls it.
const char* name_of(at::ScalarType type) {
  return type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : "float32";
}

at::ScalarType type_in(const ordered_json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      if (config.value(key, ordered_json()) == name_of(type)) {
        return type;
      }
    }
  }
  return at::kFloat;
}

// Does not mix a model with what is there already, unless that is an earlier export.
void check_folder(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !fs::is_directory(folder, ignored)) {
    throw InputError("export", concat(folder.string(), " is a file"), "Name a new folder.");
  }
  if (fs::is_directory(folder, ignored) && !fs::is_empty(folder, ignored) &&
      !fs::exists(folder / "config.json", ignored)) {
    throw InputError("export", concat(folder.string(), " is not empty, and no Hugging Face folder"),
                     "Name a new folder, or an earlier export, which is replaced.");
  }
}

config::ModelConfig model_in(const checkpoint::Checkpoint& saved, const config::RunConfig& run) {
  config::ModelConfig model = run.model;
  if (!model.reads_tokens()) {
    throw InputError("export", concat(saved.folder().string(), " is a ", model.type, ", which transformers lacks"),
                     "A \"gpt\", \"llama\" or \"bert\" can be written as a Hugging Face folder.");
  }
  if (model.shape().vocab_size == 0) { // the tokenizer's: the embedding has as many rows
    model.set_vocab_size(saved.entry(concat(model.layer_shapes().front().name, ".weight")).shape.front());
  }
  return model;
}

const models::HuggingFaceFamily& family_of(const config::ModelConfig& model) {
  using Kind = config::ModelConfig::Kind;
  return model.kind == Kind::llama  ? models::llama_family()
         : model.kind == Kind::bert ? models::bert_family()
                                    : models::gpt2_family();
}

ordered_json config_of(const config::ModelConfig& model, const ordered_json& base) {
  return model.is_language() ? config::write_huggingface_model(model.language(), base)
                             : config::write_huggingface_model(model.bert, base);
}

} // namespace

Exported export_model(const fs::path& from, const fs::path& folder, std::optional<at::ScalarType> dtype) {
  const auto saved = checkpoint::Checkpoint::open(from);
  const config::RunConfig run = config::read_run(
      JsonNode::parse(saved.config().dump(), (saved.folder() / "manifest.json").string()), saved.folder());
  const config::ModelConfig model = model_in(saved, run);
  check_folder(folder);

  copy_kept_files(saved.folder(), folder);
  const fs::path config_file = folder / "config.json";
  std::error_code ignored;
  const ordered_json kept =
      fs::exists(config_file, ignored) ? JsonNode::parse_file(config_file).plain() : ordered_json::object();
  Exported out{saved.step(), 0, dtype.value_or(type_in(kept))};

  std::vector<models::SavedParameter> parameters;
  std::set<std::string> names; // a tied head repeats the embedding
  for (const models::LayerShape& layer : model.layer_shapes()) {
    for (const auto& parameter : layer.parameters) {
      const std::string name = concat(layer.name, '.', parameter.name);
      if (!names.insert(name).second) {
        continue;
      }
      const std::vector<int64_t>& sizes = parameter.sizes;
      parameters.push_back({name, sizes, [&saved, name, sizes] {
                              at::Tensor value = at::empty(sizes, at::kFloat);
                              models::load_parameter(saved, name, value);
                              return value;
                            }});
      out.parameters += c10::multiply_integers(sizes);
    }
  }
  models::save_huggingface(family_of(model), parameters, folder, {.dtype = out.dtype});

  ordered_json described = config_of(model, kept);
  described.erase("dtype");
  described["torch_dtype"] = name_of(out.dtype); // transformers of any version reads it
  write_file_atomically(config_file, described.dump(2) + "\n");
  return out;
}

} // namespace trireme::generate
