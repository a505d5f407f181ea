#include <trireme/models/model_values.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/models/adapter_files.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/huggingface_weights.h>
#include <trireme/models/split_values.h>
#include <trireme/parallel/tensor/skip_init.h>

namespace trireme::models {

std::set<std::string> parameter_names(const std::vector<LayerShape>& shapes) {
  std::set<std::string> names;
  for (const LayerShape& part : shapes) {
    for (const LayerShape::Parameter& parameter : part.parameters) {
      names.insert(concat(part.name, '.', parameter.name));
    }
  }
  return names;
}

ModelValues::ModelValues(const HuggingFaceFamily& family, const std::vector<LayerShape>& shapes,
                         const std::filesystem::path& init_from, const LoraOptions& lora, Fill random)
    : fill_(std::move(random)) {
  if (!init_from.empty()) {
    read_from(family, shapes, init_from, lora);
  } else if (tensor::SkipInit::is_on()) { // whoever builds the model has all values
    fill_ = [](const std::string&, const at::Tensor&) {};
  }
  if (lora.on() && !lora.init_from.empty()) {
    fill_ = [lora, adapters = adapter_values(lora, shapes, fill_), others = std::move(fill_)](
                const std::string& name, const at::Tensor& parameter) {
      (lora.trains(name) ? adapters : others)(name, parameter);
    };
  }
}

void ModelValues::read_from(const HuggingFaceFamily& family, const std::vector<LayerShape>& shapes,
                            const std::filesystem::path& init_from, const LoraOptions& lora) {
  const auto starts_anew = [&family](const std::string& name) { return is_adapter(name) || may_be_new(family, name); };
  if (auto saved = checkpoint_in(init_from)) {
    std::set<std::string> known = parameter_names(shapes);
    for (const std::string& name : saved->names("parameter")) {
      if (is_adapter(name) && !lora.init_from.empty()) {
        throw InputError(
            "init_from",
            concat(saved->folder().string(), " has adapters, and so has model.adapter, ", lora.init_from.string()),
            concat("Leave model.adapter out, or start from the merged weights: trireme export ",
                   for_shell(saved->folder().string()), " FOLDER --merge."));
      }
      if (is_optional(family, name) || may_be_new(family, name)) {
        known.insert(name);
      }
    }
    check_parameter_names(*saved, known);
    fill_ = [starts_anew, saved = std::make_shared<const checkpoint::Checkpoint>(std::move(*saved)),
             random = std::move(fill_)](const std::string& name, const at::Tensor& parameter) {
      if (starts_anew(name) && !saved->has(name)) {
        random(name, parameter);
      } else {
        load_parameter(*saved, name, parameter);
      }
    };
    return;
  }
  const auto files = std::make_shared<const checkpoint::WeightFiles>(plain_weights(init_from));
  check_names(family, parameter_names(shapes), *files, init_from);
  fill_ = [&family, starts_anew, files, init_from, random = std::move(fill_)](const std::string& name,
                                                                              const at::Tensor& parameter) {
    if (starts_anew(name) && !has_parameter(family, name, *files)) {
      random(name, parameter);
    } else {
      load_parameter(family, name, parameter, *files, init_from);
    }
  };
}

void ModelValues::fill(const std::string& prefix, const torch::nn::Module& module) const {
  fill_values(prefix, module, fill_);
}

} // namespace trireme::models
