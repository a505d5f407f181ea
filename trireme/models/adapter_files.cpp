#include <trireme/models/adapter_files.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>

#include <c10/util/ArrayRef.h>

#include <map>
#include <memory>

namespace trireme::models {
namespace {

constexpr const char* kPickled = "adapter_model.bin";
constexpr const char* kBefore = "base_model.model.";

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

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what) {
  throw InputError("lora", concat(file.string(), ": ", what),
                   "The adapter belongs to another base model, or training.lora differs from its adapter_config.json.");
}

// Older folders of PEFT have their values as a pickle, which can run code.
void check_is_safetensors(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder / kAdapterFile, ignored) && std::filesystem::exists(folder / kPickled, ignored)) {
    throw InputError("lora", concat(folder.string(), " has ", kPickled, ", which is not read, and no ", kAdapterFile),
                     "Load it in Python with PEFT, and save it with save_pretrained(FOLDER, safe_serialization=True).");
  }
}

} // namespace

std::string name_in_adapter_file(const std::string& parameter) {
  return concat(kBefore, parameter);
}

bool is_name_in_adapter_file(std::string_view tensor) {
  return tensor.starts_with(kBefore);
}

std::function<void(const std::string&, const at::Tensor&)> adapter_values(const LoraOptions& lora,
                                                                          const std::vector<LayerShape>& shapes) {
  check_is_safetensors(lora.init_from);
  const std::filesystem::path path = lora.init_from / kAdapterFile;
  const auto file = std::make_shared<const checkpoint::Safetensors>(checkpoint::Safetensors::open(path));
  const Sizes wanted = trained_in(shapes, lora);
  for (const checkpoint::TensorInfo& tensor : file->tensors()) {
    const auto found = wanted.find(tensor.name);
    if (found == wanted.end()) {
      refuse(path, concat("the model has no place for the tensor \"", tensor.name, '"'));
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
  return [file](const std::string& name, const at::Tensor& parameter) {
    parameter.detach().copy_(file->tensor(name_in_adapter_file(name)));
  };
}

void save_adapter(const std::vector<AdapterTensor>& tensors, const std::filesystem::path& folder) {
  std::vector<checkpoint::NamedTensor> named;
  for (const AdapterTensor& tensor : tensors) {
    named.push_back({name_in_adapter_file(tensor.name), tensor.value});
  }
  checkpoint::write_safetensors(folder / kAdapterFile, named, {{"format", "pt"}});
}

} // namespace trireme::models
