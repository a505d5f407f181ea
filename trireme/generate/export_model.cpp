#include <trireme/generate/export_model.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/base/new_folder.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/run_file.h>
#include <trireme/generate/base_values.h>
#include <trireme/generate/export_adapter.h>
#include <trireme/generate/export_mark.h>
#include <trireme/generate/merge.h>
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

// Parameters of a plain model, with `lora` merged into its weights. Returns their number of elements.
int64_t save_weights(const checkpoint::Checkpoint& saved, const config::ModelConfig& model,
                     const models::LoraOptions& lora, at::ScalarType dtype, const fs::path& folder) {
  BaseValues base(saved, model.init_from(), family_of(model));
  const ReadParameter read = [&saved](const std::string& name, const at::Tensor& value) {
    models::load_parameter(saved, name, value);
  };
  std::vector<models::SavedParameter> parameters;
  std::set<std::string> names; // a tied head repeats the embedding
  int64_t elements = 0;
  for (const models::LayerShape& layer : model.layer_shapes()) {
    for (const auto& parameter : layer.parameters) {
      const std::string name = concat(layer.name, '.', parameter.name);
      if (!names.insert(name).second) {
        continue;
      }
      const std::vector<int64_t>& sizes = parameter.sizes;
      parameters.push_back({name, sizes, [&read, &lora, &base, name, sizes] {
                              at::Tensor value = at::empty(sizes, at::kFloat);
                              read(name, value);
                              base.put_back(name, value);
                              merge_adapter(name, value, lora, read);
                              return value;
                            }});
      elements += c10::multiply_integers(sizes);
    }
  }
  models::save_huggingface(family_of(model), parameters, folder, {.dtype = dtype});
  return elements;
}

// `kept`: config.json of the folder that the run began with.
void write_config(const checkpoint::Checkpoint& saved, const config::ModelConfig& model, const ordered_json& kept,
                  at::ScalarType dtype, const fs::path& file) {
  ordered_json described = config_of(model, kept);
  const std::vector<std::string> labels = kept_labels(saved.folder());
  for (size_t i = 0; i < labels.size(); ++i) {
    described["id2label"][std::to_string(i)] = labels[i];
  }
  if (!labels.empty()) {
    described["label2id"] = ordered_json::object();
    for (const auto& [id, name] : described["id2label"].items()) {
      described["label2id"][name.get<std::string>()] = std::stoll(id);
    }
  }
  described.erase("dtype");
  described["torch_dtype"] = name_of(dtype); // transformers of any version reads it
  write_file_atomically(file, described.dump(2) + "\n");
}

} // namespace

std::optional<int64_t> check_export_folder(const fs::path& folder, const fs::path& source) {
  const auto refuse = [&](const std::string& what) {
    throw InputError("export", concat(folder.string(), what), "Name a new folder, or an earlier export.");
  };
  std::error_code failed;
  const fs::file_status there = fs::status(folder, failed);
  if (!fs::exists(there) && fs::is_symlink(fs::symlink_status(folder, failed))) {
    refuse(" is a link to nothing");
  }
  NewFolder::check_place("export", folder);
  if (!fs::exists(there)) {
    return std::nullopt;
  }
  if (!fs::is_directory(there)) {
    refuse(" is a file");
  }
  const fs::path begun = fs::is_regular_file(source, failed) ? source.parent_path() : source;
  if (!source.empty() && fs::equivalent(folder, begun.empty() ? "." : begun, failed)) {
    refuse(" is the folder that the model began with");
  }
  if (fs::is_empty(folder, failed)) {
    return std::nullopt;
  }
  const ExportMark mark = read_export_mark(folder);
  if (!mark.step) {
    refuse(" is not empty, and no earlier export");
  }
  if (!mark.changed.empty()) {
    refuse(concat(" was exported at step ", *mark.step, ", and ", mark.changed, " is not as it was then"));
  }
  return mark.step;
}

Exported export_model(const fs::path& from, const fs::path& folder, std::optional<at::ScalarType> dtype, bool merge) {
  const auto saved = open_held(from);
  const config::RunConfig run = run_of(saved, "export");
  config::ModelConfig model = model_in(saved, run);
  const models::LoraOptions lora = model.lora();
  if (merge && !lora.on()) {
    throw InputError("export", concat(saved.folder().string(), " has no adapters that could be merged"),
                     "Leave --merge out.");
  }
  check_export_folder(folder, run.model.init_from());
  NewFolder made("export", folder, ".", ".tmp.");

  copy_kept_files(saved.folder(), made.path());
  const fs::path config_file = made.path() / "config.json";
  std::error_code ignored;
  const ordered_json kept =
      fs::exists(config_file, ignored) ? JsonNode::parse_file(config_file).plain() : ordered_json::object();
  Exported out{saved.step(), 0, dtype.value_or(type_in(kept)), lora.on() && !merge, std::nullopt};
  if (out.is_adapter) {
    out.dtype = dtype.value_or(at::kFloat);
    fs::remove(config_file, ignored); // of the base model
    fs::remove(made.path() / "generation_config.json", ignored);
    out.parameters = export_adapter(saved, run, model, out.dtype, made.path());
  } else {
    model.lora() = {};
    out.parameters = save_weights(saved, model, lora, out.dtype, made.path());
    write_config(saved, model, kept, out.dtype, config_file);
  }
  write_export_mark(made.path(), out.step);
  for (const auto& item : fs::directory_iterator(made.path())) { // weights are written as those of a run, for its user
    fs::permissions(item.path(), fs::perms{0644}, ignored);
  }
  made.take_place([&](const fs::path& place) { out.replaced = check_export_folder(place, run.model.init_from()); });
  return out;
}

} // namespace trireme::generate
