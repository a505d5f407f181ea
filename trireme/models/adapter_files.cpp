#include <trireme/models/adapter_files.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/model_values.h>

#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace trireme::models {
namespace {

constexpr const char* kPickled = "adapter_model.bin";
constexpr const char* kBefore = "base_model.model.";
constexpr const char* kBaseSample = "trireme_base_sample";

using Sizes = std::map<std::string, std::vector<int64_t>>;

Sizes trained_in(const std::vector<LayerShape>& shapes, const LoraOptions& lora) {
  Sizes sizes;
  for (const LayerShape& layer : shapes) {
    for (const LayerShape::Parameter& parameter : layer.parameters) {
      if (const std::string name = concat(layer.name, '.', parameter.name); lora.trains(name)) {
        sizes[name_in_adapter_file(name)] = parameter.sizes;
      }
    }
  }
  return sizes;
}

constexpr const char* kOtherBase =
    "The adapter belongs to another base model, or training.lora differs from its adapter_config.json.";

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what, const char* next = kOtherBase) {
  throw InputError("lora", concat(file.string(), ": ", what), next);
}

// Whether PEFT's adapter is of a layer beside the numbered blocks: an embedding, a head or a pooler.
bool is_beside_blocks(const std::string& tensor) {
  return tensor.find(".lora_") != std::string::npos && tensor.find_first_of("0123456789") == std::string::npos;
}

// Older folders of PEFT have their values as a pickle, which can run code.
void check_is_safetensors(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder / kAdapterFile, ignored) && std::filesystem::exists(folder / kPickled, ignored)) {
    throw InputError("lora", concat(folder.string(), " has ", kPickled, ", which is not read, and no ", kAdapterFile),
                     "Load it in Python with PEFT, and save it with save_pretrained(FOLDER, safe_serialization=True).");
  }
}

// The adapted weights with their sizes.
std::vector<std::pair<std::string, std::vector<int64_t>>> adapted_weights(const std::vector<LayerShape>& shapes) {
  constexpr std::string_view kWeight = ".weight";
  const std::set<std::string> all = parameter_names(shapes);
  std::vector<std::pair<std::string, std::vector<int64_t>>> found;
  for (const LayerShape& layer : shapes) {
    for (const LayerShape::Parameter& parameter : layer.parameters) {
      const std::string name = concat(layer.name, '.', parameter.name);
      if (name.ends_with(kWeight) &&
          all.contains(concat(name.substr(0, name.size() - kWeight.size()), ".lora_A.weight"))) {
        found.emplace_back(name, parameter.sizes);
      }
    }
  }
  return found;
}

std::vector<double> numbers_in(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<double>(words), {}};
}

// Rounding to bf16 or fp16 changes a value by less.
bool are_close(const std::string& saved, const std::string& here) {
  const auto close = [](double a, double b) { return std::abs(a - b) <= std::abs(a) / 64 + 1e-6; };
  return saved == here || std::ranges::equal(numbers_in(saved), numbers_in(here), close);
}

} // namespace

std::string name_in_adapter_file(const std::string& parameter) {
  return concat(kBefore, parameter);
}

bool is_name_in_adapter_file(std::string_view tensor) {
  return tensor.starts_with(kBefore);
}

FillParameter adapter_values(const LoraOptions& lora, const std::vector<LayerShape>& shapes,
                             const FillParameter& base) {
  check_is_safetensors(lora.init_from);
  const std::filesystem::path path = lora.init_from / kAdapterFile;
  const auto file = std::make_shared<const checkpoint::Safetensors>(checkpoint::Safetensors::open(path));
  const Sizes wanted = trained_in(shapes, lora);
  for (const checkpoint::TensorInfo& tensor : file->tensors()) {
    const auto found = wanted.find(tensor.name);
    if (found == wanted.end()) {
      const bool beside = is_beside_blocks(tensor.name);
      refuse(path,
             concat("the model has no place for the tensor \"", tensor.name, '"',
                    beside ? ": embeddings, heads and poolers have no adapters" : ""),
             beside ? "Train the adapter on linear layers of the blocks alone." : kOtherBase);
    }
    if (found->second != tensor.shape) {
      refuse(path, concat("tensor \"", tensor.name, "\" has shape ", c10::IntArrayRef(tensor.shape),
                          ", the model needs ", c10::IntArrayRef(found->second)));
    }
  }
  for (const auto& [name, sizes] : wanted) {
    if (!file->has(name)) {
      refuse(path, concat("there is no tensor \"", name, "\", which the model needs"));
    }
  }
  if (const auto saved = file->metadata().find(kBaseSample);
      saved != file->metadata().end() && !are_close(saved->second, sample_base(shapes, base))) {
    throw InputError("lora", concat(path.string(), ": the base model's weights are not those it was trained on"),
                     "The adapter belongs to another base model: name that one.");
  }
  return [file](const std::string& name, const at::Tensor& parameter) {
    parameter.detach().copy_(file->tensor(name_in_adapter_file(name)));
  };
}

bool has_base_sample(const std::filesystem::path& folder) {
  return checkpoint::Safetensors::open(folder / kAdapterFile).metadata().contains(kBaseSample);
}

std::string sample_base(const std::vector<LayerShape>& shapes, const FillParameter& base) {
  constexpr size_t kWeights = 4;
  constexpr int64_t kPlaces = 8;
  const auto weights = adapted_weights(shapes);
  std::ostringstream out;
  out.precision(9);
  const size_t count = std::min(kWeights, weights.size());
  for (size_t i = 0; i < count; ++i) {
    const auto& [name, sizes] = weights[i * weights.size() / count];
    const at::Tensor value = at::empty(sizes, at::kFloat);
    base(name, value);
    const at::Tensor flat = value.view({-1});
    for (int64_t place = 0; place < kPlaces; ++place) {
      out << (out.tellp() > 0 ? " " : "") << flat[(2 * place + 1) * flat.numel() / (2 * kPlaces)].item<float>();
    }
  }
  return out.str();
}

void save_adapter(const std::vector<AdapterTensor>& tensors, const std::filesystem::path& folder,
                  const std::string& base_sample) {
  std::vector<checkpoint::NamedTensor> named;
  for (const AdapterTensor& tensor : tensors) {
    named.push_back({name_in_adapter_file(tensor.name), tensor.value});
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!base_sample.empty()) {
    metadata[kBaseSample] = base_sample;
  }
  checkpoint::write_safetensors(folder / kAdapterFile, named, metadata);
}

} // namespace trireme::models
