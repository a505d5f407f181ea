#include <trireme/models/gpt2_weights.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/weight_files.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace trireme::models {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "transformer.wte.weight";

// GPT-2's linear layers inside the blocks are Conv1D modules: weight [in, out].
bool is_transposed(const std::string& name, const at::Tensor& parameter) {
  return parameter.dim() == 2 && name.find(".h.") != std::string::npos;
}

// Constant masks in old files, which are part of the architecture.
bool is_constant(const std::string& name) {
  const auto ends_with = [&](std::string_view end) {
    return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends_with(".attn.bias") || ends_with(".attn.masked_bias");
}

// Some files leave out the prefix.
std::string name_in(const checkpoint::WeightFiles& files, const std::string& parameter) {
  return !files.has(parameter) && parameter.rfind(kPrefix, 0) == 0 ? parameter.substr(kPrefix.size()) : parameter;
}

// Compares values, whatever their types, by blocks of rows, without a full copy.
bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kRows = 1024;
  if (a.sizes() != b.sizes() || a.dim() == 0) {
    return false;
  }
  for (int64_t row = 0; row < a.size(0); row += kRows) {
    const auto block = [&](const at::Tensor& whole) { return whole.slice(0, row, row + kRows).to(at::kDouble); };
    if (!block(a).equal(block(b))) {
      return false;
    }
  }
  return true;
}

// A tied model has one weight for both: the file's head must equal its embedding.
void check_tied_head(const checkpoint::WeightFiles& files, const std::filesystem::path& weights) {
  const std::string embedding = name_in(files, kEmbedding);
  if (files.has(kHead) && files.has(embedding) && !are_equal(files.tensor(kHead), files.tensor(embedding))) {
    throw InputError(
        "gpt",
        concat(weights.string(), ": tensor \"", kHead, "\" differs from \"", embedding,
               "\", but with model.tie_embeddings true the model has one weight for both: the head would be lost"),
        concat("Set model.tie_embeddings to false to start from both, or remove \"", kHead,
               "\" from the file to start from the embedding."));
  }
}

// Parameters that tensor ranks split have other sizes. Reading one that ZeRO stage 3 has not gathered throws by itself.
void check_whole(const Gpt& model) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const LayerShape& part : layer_shapes(model->options())) {
    for (const LayerShape::Parameter& parameter : part.parameters) {
      sizes[concat(part.name, '.', parameter.name)] = parameter.sizes;
    }
  }
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& value = item.value();
    if (value.sizes() != at::IntArrayRef(sizes.at(item.key()))) {
      throw InputError("gpt",
                       concat("save_gpt2: this rank has only a part of parameter \"", item.key(), "\": shape ",
                              value.sizes(), " of ", at::IntArrayRef(sizes.at(item.key()))),
                       "Save a checkpoint, then save_gpt2() a Gpt of one rank whose init_from is that checkpoint.");
    }
  }
}

// GPT2Config's values that differ from its defaults in this model, or could.
std::string configuration(const GptOptions& options, at::ScalarType dtype) {
  constexpr int64_t kEndOfText = 50256;
  const nlohmann::json token = options.vocab_size > kEndOfText ? nlohmann::json(kEndOfText) : nlohmann::json();
  const char* dtype_name = dtype == at::kBFloat16 ? "bfloat16"
                           : dtype == at::kHalf   ? "float16"
                           : dtype == at::kDouble ? "float64"
                                                  : "float32";
  return nlohmann::ordered_json{{"architectures", {"GPT2LMHeadModel"}},
                                {"model_type", "gpt2"},
                                {"vocab_size", options.vocab_size},
                                {"n_positions", options.sequence_length},
                                {"n_embd", options.hidden},
                                {"n_layer", options.layers},
                                {"n_head", options.heads},
                                {"n_inner", nullptr},
                                {"activation_function", "gelu_new"},
                                {"layer_norm_epsilon", 1e-5},
                                {"embd_pdrop", options.dropout},
                                {"attn_pdrop", options.dropout},
                                {"resid_pdrop", options.dropout},
                                {"tie_word_embeddings", options.tie_embeddings},
                                {"bos_token_id", token},
                                {"eos_token_id", token},
                                {"dtype", dtype_name},
                                {"torch_dtype", dtype_name}} // its name before version 5
             .dump(2) +
         "\n";
}

} // namespace

void load_gpt2_parameter(const std::string& parameter, const at::Tensor& value, const checkpoint::WeightFiles& files,
                         const std::filesystem::path& weights) {
  const torch::NoGradGuard no_grad;
  const std::string name = name_in(files, parameter);
  if (!files.has(name)) {
    throw InputError("gpt", concat(weights.string(), " has no tensor \"", parameter, '"'),
                     parameter == kHead ? "Set model.tie_embeddings to true if the file has tied embeddings."
                                        : "Check layers in \"model\"; names must be those of Hugging Face's GPT-2.");
  }
  const bool transposed = is_transposed(parameter, value);
  at::Tensor source = files.tensor(name);
  if (transposed && source.dim() == 2) {
    source = source.t();
  }
  if (source.sizes() != value.sizes()) {
    throw InputError("gpt",
                     concat(weights.string(), ": tensor \"", name, "\" has shape ", files.tensor(name).sizes(),
                            ", the model needs ", transposed ? value.t().sizes() : value.sizes()),
                     "Set layers, hidden, sequence_length and vocab_size in \"model\" to those of the file.");
  }
  value.detach().copy_(source);
}

void check_gpt2_names(const std::set<std::string>& parameters, const checkpoint::WeightFiles& files,
                      const std::filesystem::path& weights) {
  std::set<std::string> places;
  for (const std::string& parameter : parameters) {
    places.insert(name_in(files, parameter));
  }
  for (const std::string& name : files.names()) {
    if (places.count(name) == 0 && !is_constant(name) && name != kHead) {
      throw InputError("gpt", concat(weights.string(), ": the model has no tensor \"", name, '"'),
                       "Check layers in \"model\".");
    }
  }
  if (parameters.count(kHead) == 0) {
    check_tied_head(files, weights);
  }
}

void load_gpt2(Gpt& model, const std::filesystem::path& weights) {
  const auto files = checkpoint::WeightFiles::open(weights);
  std::set<std::string> parameters;
  for (const std::string& name : model->named_parameters().keys()) {
    parameters.insert(name);
  }
  check_gpt2_names(parameters, files, weights);
  for (const auto& item : model->named_parameters()) {
    load_gpt2_parameter(item.key(), item.value(), files, weights);
  }
}

void save_gpt2(const Gpt& model, const std::filesystem::path& path) {
  check_whole(model);
  const bool alone = path.extension() == ".safetensors";
  const std::filesystem::path folder = alone ? path.parent_path() : path;
  if (!folder.empty()) {
    make_private_folders(folder);
  }
  std::vector<checkpoint::NamedTensor> tensors;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor value = item.value().detach();
    tensors.push_back({item.key(), is_transposed(item.key(), value) ? value.t().contiguous() : value});
  }
  checkpoint::write_safetensors(alone ? path : folder / "model.safetensors", tensors, {{"format", "pt"}});
  if (!alone) {
    write_file_atomically(folder / "config.json",
                          configuration(model->options(), tensors.front().tensor.scalar_type()));
  }
}

} // namespace trireme::models
