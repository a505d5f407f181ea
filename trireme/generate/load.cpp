#include <trireme/generate/load.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/weight_files.h>
#include <trireme/comm/differences.h>
#include <trireme/config/adapter_config.h>
#include <trireme/config/huggingface_folder.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/run_file.h>
#include <trireme/generate/merge.h>
#include <trireme/generate/model_files.h>
#include <trireme/generate/same_files.h>
#include <trireme/models/adapter_files.h>
#include <trireme/parallel/tensor/skip_init.h>
#include <trireme/parallel/tensor/split_module.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& folder, const std::string& type) {
  throw InputError("generate", concat(folder.string(), " is a ", type, ", which generates no text"),
                   "A \"gpt\" or \"llama\" does.");
}

models::ModelRanks split_among(const tensor::Ranks& ranks) {
  models::ModelRanks all;
  all.tensor = ranks;
  return all;
}

enum class Change { replaces, adds };

// Calls f(name, full parameter) for each. Of one that is split f gets zeros, and this rank takes its part of the
// result.
template <class F>
void change_parameters(const torch::nn::Module& module, Change change, const F& f) {
  const tensor::Placements split = tensor::placements_of(module);
  for (const auto& item : module.named_parameters()) {
    const at::Tensor own = item.value().detach();
    const auto part = split.find(item.value().unsafeGetTensorImpl());
    if (part == split.end()) {
      f(item.key(), own);
      continue;
    }
    const at::Tensor whole = torch::zeros(part->second.global_shape, own.options());
    f(item.key(), whole);
    const at::Tensor box = tensor::box_of(whole, part->second, own.sizes());
    change == Change::adds ? own.add_(box) : own.copy_(box);
  }
}

// The parameter in fp32, gathered from the ranks that split it. Collective.
at::Tensor whole_parameter(const torch::nn::Module& module, const std::string& name, const tensor::Ranks& ranks) {
  const at::Tensor parameter = module.named_parameters()[name];
  const at::Tensor own = parameter.detach().to(at::kFloat);
  const tensor::Placements split = tensor::placements_of(module);
  const auto part = split.find(parameter.unsafeGetTensorImpl());
  if (part == split.end()) {
    return own;
  }
  const at::IntArrayRef shape = part->second.global_shape;
  const int64_t numel = c10::multiply_integers(shape);
  const at::Tensor places = tensor::box_of(at::arange(numel, at::kLong).view(shape), part->second, own.sizes());
  at::Tensor whole = at::zeros({numel});
  whole.index_copy_(0, places.flatten(), own.flatten());
  ranks.group.all_reduce(whole, comm::ReduceOp::sum, "a weight of the base model").wait();
  return whole;
}

[[noreturn]] void refuse_second(const fs::path& model, const char* is, const fs::path& adapter) {
  throw InputError("generate",
                   concat(model.string(), ' ', is, ", which already count, and ", adapter.string(), " would be added"),
                   "Leave --adapter out, or name the base model's folder.");
}

Trained load_huggingface(const fs::path& folder, const tensor::Ranks& ranks) {
  const config::HuggingFaceModel read = config::read_huggingface_model(folder);
  Trained trained;
  switch (read.family) {
    case models::TransformerShape::Family::gpt:
      trained.model = models::LanguageModel(read.gpt, split_among(ranks));
      break;
    case models::TransformerShape::Family::llama:
      trained.model = models::LanguageModel(read.llama, split_among(ranks));
      break;
    case models::TransformerShape::Family::bert:
      refuse(folder, "bert");
  }
  if (const fs::path tokenizer = config::tokenizer_in(folder); !tokenizer.empty()) {
    trained.tokenizer = data::make_tokenizer(tokenizer.string());
  }
  trained.end_tokens = tokenizer::end_token_ids_in(folder);
  trained.files = folder;
  return trained;
}

// `adapter`: empty, or one that will be added.
Trained load_checkpoint(const checkpoint::Checkpoint& saved, const fs::path& adapter, const tensor::Ranks& ranks) {
  config::RunConfig run = run_of(saved, "generate");
  config::ModelConfig& model = run.model;
  if (!model.is_language()) {
    refuse(saved.folder(), model.type);
  }
  Trained trained;
  if (!run.data.tokenizer.empty()) {
    trained.tokenizer = data::make_tokenizer(kept_tokenizer(run, saved.folder()).string());
  }
  if (model.shape().vocab_size == 0 && trained.tokenizer) { // the tokenizer's size
    model.set_vocab_size(trained.tokenizer->vocab_size());
  }
  model.init_from().clear(); // the checkpoint has the weights
  const models::LoraOptions lora = std::exchange(model.lora(), {});
  if (lora.on() && !adapter.empty()) {
    refuse_second(saved.folder(), "is of a run with adapters", adapter);
  }
  {
    const tensor::SkipInit skip_init(true);
    trained.model = models::LanguageModel(model.language(), split_among(ranks));
  }
  const ReadParameter read = [&saved](const std::string& name, const at::Tensor& value) {
    saved.read_into(name, 0, value.detach());
  };
  change_parameters(*trained.model.module(), Change::replaces, [&](const std::string& name, const at::Tensor& value) {
    read(name, value);
    merge_adapter(name, value, lora, read);
  });
  trained.end_tokens = tokenizer::end_token_ids_in(kept_folder(saved.folder()));
  trained.step = saved.step();
  trained.files = kept_folder(saved.folder());
  const fs::path tokenizer = run.data.tokenizer;
  std::error_code ignored;
  if (tokenizer.has_parent_path() && !fs::is_directory(trained.files, ignored)) { // a copy of the checkpoint alone
    trained.files = fs::is_directory(tokenizer, ignored) ? tokenizer : tokenizer.parent_path();
  }
  return trained;
}

// Adds a PEFT folder's adapters to the weights.
void merge(const fs::path& adapter, const fs::path& model, const tensor::Ranks& ranks, Trained& trained) {
  if (const std::string base = config::other_base_of_adapter(adapter, model);
      !base.empty() && !models::has_base_sample(adapter)) {
    log::warning(adapter.string(), " was trained on ", printable(base), ", and this model is ", model.string());
  }
  models::TransformerShape shape = trained.model.shape();
  shape.lora = config::read_adapter_config(adapter, models::layer_shapes(shape));
  const ReadParameter base_values = [&](const std::string& name, const at::Tensor& value) {
    value.copy_(whole_parameter(*trained.model.module(), name, ranks).view(value.sizes()));
  };
  const ReadParameter read = models::adapter_values(shape.lora, models::layer_shapes(shape), base_values);
  change_parameters(*trained.model.module(), Change::adds, [&](const std::string& name, const at::Tensor& value) {
    merge_adapter(name, value, shape.lora, read);
  });
}

// The Hugging Face folder that a PEFT folder names as its base model.
fs::path base_folder(const fs::path& adapter) {
  const fs::path base = config::base_of_adapter(adapter);
  std::error_code ignored;
  if (base.empty()) {
    throw InputError(
        "generate",
        concat((adapter / config::kAdapterConfig).string(), " names no base model (base_model_name_or_path)"),
        concat("Name the base model's folder instead, with --adapter ", adapter.string(), '.'));
  }
  if (!fs::is_regular_file(base / "config.json", ignored)) {
    throw InputError("generate",
                     concat((adapter / config::kAdapterConfig).string(), ": the base model \"", base.string(),
                            "\" is not a Hugging Face folder of this machine"),
                     concat("Name the base model's folder instead, with --adapter ", adapter.string(), '.'));
  }
  return base;
}

enum class Kind { huggingface, adapter, run };

Kind kind_of(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path / "config.json", ignored)            ? Kind::huggingface
         : fs::is_regular_file(path / config::kAdapterConfig, ignored) ? Kind::adapter
                                                                       : Kind::run;
}

// Before any rank reads what it names: ranks open the checkpoint that the first one names. Collective.
void check_same_names(Kind kind, const fs::path& path, const fs::path& adapter, const comm::Group& ranks) {
  constexpr std::array kKinds = {"a Hugging Face folder", "a folder of PEFT", "a run or checkpoint"};
  if (ranks.size() == 1) {
    return;
  }
  const auto found = comm::differences(ranks,
                                       nlohmann::ordered_json{{"the kind of model", kKinds[static_cast<size_t>(kind)]},
                                                              {"the run", kind == Kind::run ? path.string() : ""},
                                                              {"whether there is an adapter", !adapter.empty()}},
                                       "what generate reads");
  if (!found.empty()) {
    const comm::LeafDifference& first = found.front();
    throw InputError(
        "generate",
        concat(first.ranks(), " differ in ", first.path.substr(1), ": ", first.other(), " and ", first.first()),
        "Name the same model on every rank.");
  }
}

// Those that decide what a rank's part is of. A manifest has the hashes of its checkpoint's files.
std::vector<fs::path> compared_files(const fs::path& path, const fs::path& adapter,
                                     const std::optional<checkpoint::Checkpoint>& saved) {
  std::vector<fs::path> files;
  fs::path tokenizer;
  if (saved) {
    const config::RunConfig run = run_of(*saved, "generate");
    files.push_back(saved->folder() / "manifest.json");
    tokenizer = run.data.tokenizer.empty() ? "" : kept_tokenizer(run, saved->folder());
  } else {
    files.push_back(path / "config.json");
    const auto weights = checkpoint::WeightFiles::open(path);
    for (const checkpoint::Safetensors& file : weights.files()) {
      files.push_back(file.path());
    }
    tokenizer = config::tokenizer_in(path);
  }
  if (!tokenizer.empty()) {
    for (const tokenizer::TokenizerFile& file : tokenizer::tokenizer_files(tokenizer.string())) {
      files.push_back(file.path);
    }
  }
  if (!adapter.empty()) {
    files.insert(files.end(), {adapter / config::kAdapterConfig, adapter / models::kAdapterFile});
  }
  return files;
}

} // namespace

Trained load(const fs::path& path, const fs::path& adapter, const tensor::Ranks& ranks) {
  const Kind kind = kind_of(path);
  check_same_names(kind, path, adapter, ranks.group);
  if (kind == Kind::adapter) {
    if (!adapter.empty()) {
      refuse_second(path, "is a folder of PEFT with adapters", adapter);
    }
    fs::path base;
    together(ranks.group, [&] { base = base_folder(path); });
    return load(base, path, ranks);
  }
  const auto saved = kind == Kind::run ? std::optional(open_held(path, ranks.group)) : std::nullopt;
  check_same_files(ranks.group, [&] { return compared_files(path, adapter, saved); });
  Trained trained;
  together(ranks.group,
           [&] { trained = saved ? load_checkpoint(*saved, adapter, ranks) : load_huggingface(path, ranks); });
  if (!adapter.empty()) {
    together(ranks.group, [&] { merge(adapter, path, ranks, trained); });
  }
  return trained;
}

} // namespace trireme::generate
