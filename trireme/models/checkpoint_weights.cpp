#include <trireme/models/checkpoint_weights.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/models/adapter_files.h>
#include <trireme/optim/flat_optimizer.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace trireme::models {
namespace {

constexpr const char* kSameModel = "Use the \"model\" of the checkpoint's run, or other weights.";
constexpr const char* kOtherWeights = "Change \"model\" to what these weights are of, or use other weights.";

// What to do about a parameter that differs.
std::string next_step(const checkpoint::Checkpoint& saved, const std::string& name) {
  if (!is_adapter(name)) {
    return kSameModel;
  }
  return concat("Set training.lora to that of the checkpoint's run, or start from its merged weights: trireme export ",
                for_shell(saved.folder().string()), " FOLDER --merge.");
}

} // namespace

std::optional<checkpoint::Checkpoint> checkpoint_in(const std::filesystem::path& path) {
  return checkpoint::find_newest(path) ? std::optional(checkpoint::Checkpoint::open(path)) : std::nullopt;
}

checkpoint::WeightFiles plain_weights(const std::filesystem::path& path) {
  auto weights = checkpoint::WeightFiles::open(path);
  if (std::ranges::any_of(weights.names(), is_name_in_adapter_file)) {
    throw InputError("init_from", concat(path.string(), " has adapters of PEFT, not the weights of a model"),
                     "Name their base model here, and their folder as model.adapter.");
  }
  for (const checkpoint::Safetensors& file : weights.files()) {
    if (file.metadata().count(checkpoint::kSaveIdKey) != 0) {
      throw InputError("init_from", concat(file.path().string(), " is one rank's part of a checkpoint"),
                       "Name the checkpoint's folder.");
    }
  }
  return weights;
}

void load_parameter(const checkpoint::Checkpoint& saved, const std::string& name, const at::Tensor& parameter) {
  if (!saved.has(name)) {
    throw InputError("init_from", concat(saved.folder().string(), " has no parameter \"", name, '"'),
                     next_step(saved, name));
  }
  const at::IntArrayRef shape = saved.entry(name).shape;
  if (shape != parameter.sizes()) {
    throw InputError("init_from",
                     concat(saved.folder().string(), ": parameter \"", name, "\" has shape ", shape,
                            ", the model needs ", parameter.sizes()),
                     next_step(saved, name));
  }
  const std::string master = concat(optim::kMasterState, '/', name);
  parameter.detach().copy_(saved.read(saved.has(master) ? master : name));
}

void check_parameter_names(const checkpoint::Checkpoint& saved, const std::set<std::string>& of_model) {
  for (const std::string& name : saved.names("parameter")) {
    if (of_model.count(name) == 0) {
      throw InputError("init_from",
                       concat(saved.folder().string(), ": the model has no ",
                              is_adapter(name) ? "adapter" : "parameter", " \"", name, '"'),
                       next_step(saved, name));
    }
  }
}

FillParameter values_in(const std::filesystem::path& path, std::set<std::string> of_model) {
  if (auto saved = checkpoint_in(path)) {
    check_parameter_names(*saved, of_model);
    return [saved = std::make_shared<const checkpoint::Checkpoint>(std::move(*saved))](
               const std::string& name, const at::Tensor& parameter) { load_parameter(*saved, name, parameter); };
  }
  const auto weights = std::make_shared<const checkpoint::WeightFiles>(plain_weights(path));
  for (const std::string& name : weights->names()) {
    if (of_model.count(name) == 0) {
      throw InputError("init_from", concat(path.string(), ": the model has no parameter \"", name, '"'), kOtherWeights);
    }
  }
  return [weights, path](const std::string& name, const at::Tensor& parameter) {
    const at::Tensor value = weights->tensor(name);
    if (value.sizes() != parameter.sizes()) {
      throw InputError("init_from",
                       concat(path.string(), ": parameter \"", name, "\" has shape ", value.sizes(),
                              ", the model needs ", parameter.sizes()),
                       kOtherWeights);
    }
    parameter.detach().copy_(value);
  };
}

} // namespace trireme::models
