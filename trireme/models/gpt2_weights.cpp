#include <trireme/models/gpt2_weights.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/weight_files.h>
#include <trireme/models/huggingface_families.h>

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace trireme::models {
namespace {

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

void load_gpt2(Gpt& model, const std::filesystem::path& weights) {
  const auto files = checkpoint::WeightFiles::open(weights);
  std::set<std::string> parameters;
  for (const std::string& name : model->named_parameters().keys()) {
    parameters.insert(name);
  }
  check_names(gpt2_family(), parameters, files, weights);
  for (const auto& item : model->named_parameters()) {
    load_parameter(gpt2_family(), item.key(), item.value(), files, weights);
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
    tensors.push_back({item.key(), as_in_files(gpt2_family(), item.key(), item.value())});
  }
  checkpoint::write_safetensors(alone ? path : folder / "model.safetensors", tensors, {{"format", "pt"}});
  if (!alone) {
    write_file_atomically(folder / "config.json",
                          configuration(model->options(), tensors.front().tensor.scalar_type()));
  }
}

} // namespace trireme::models
