#include <trireme/models/gpt2_weights.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/weight_files.h>

#include <torch/utils.h>

#include <algorithm>
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

// Masks that old files carry; they are constants of the architecture.
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

// By values, whatever their types. A block of rows at a time: no copy of the whole.
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

// A tied model has one weight for both: it can take a head only that is the embedding.
void check_tied_head(const checkpoint::WeightFiles& files, const std::filesystem::path& weights) {
  const std::string embedding = name_in(files, kEmbedding);
  if (files.has(kHead) && files.has(embedding) && !are_equal(files.tensor(kHead), files.tensor(embedding))) {
    throw InputError("gpt",
                     concat(weights.string(), ": tensor \"", kHead, "\" differs from \"", embedding,
                            "\", and with model.tie_embeddings true the model has one weight for both: the head would be lost"),
                     concat("Set model.tie_embeddings to false to start from both, or take \"", kHead, "\" out of the file to start from the embedding alone."));
  }
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
                     concat(weights.string(), ": tensor \"", name, "\" has shape ", files.tensor(name).sizes(), ", the model needs ",
                            transposed ? value.t().sizes() : value.sizes()),
                     "Make layers, hidden, sequence_length and vocab_size in \"model\" those of the file.");
  }
  value.detach().copy_(source);
}

void check_gpt2_names(const std::set<std::string>& parameters, const checkpoint::WeightFiles& files, const std::filesystem::path& weights) {
  std::set<std::string> places;
  for (const std::string& parameter : parameters) {
    places.insert(name_in(files, parameter));
  }
  for (const std::string& name : files.names()) {
    if (places.count(name) == 0 && !is_constant(name) && name != kHead) {
      throw InputError("gpt", concat(weights.string(), ": the model has no place for tensor \"", name, '"'), "Check layers in \"model\".");
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

void save_gpt2(const Gpt& model, const std::filesystem::path& file) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor value = item.value().detach();
    tensors.push_back({item.key(), is_transposed(item.key(), value) ? value.t().contiguous() : value});
  }
  checkpoint::write_safetensors(file, tensors, {{"format", "pt"}});
}

} // namespace trireme::models
