#include <trireme/models/gpt_values.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/weight_files.h>
#include <trireme/models/checkpoint_weights.h>
#include <trireme/models/gpt2_weights.h>
#include <trireme/models/initialize.h>
#include <trireme/models/split_values.h>

#include <cmath>

namespace trireme::models {

std::set<std::string> gpt_parameter_names(const GptOptions& options) {
  std::set<std::string> names;
  for (const LayerShape& part : layer_shapes(options)) {
    for (const LayerShape::Parameter& parameter : part.parameters) {
      names.insert(concat(part.name, '.', parameter.name));
    }
  }
  return names;
}

GptValues::GptValues(const GptOptions& options) : options_(options) {
  if (options.heads < 1 || options.hidden % options.heads != 0) {
    throw InputError("gpt", concat("heads must divide hidden, got ", options.heads, " and ", options.hidden));
  }
  if (options_.init_from.empty()) {
    return;
  }
  if (auto saved = checkpoint_in(options_.init_from)) {
    check_parameter_names(*saved, gpt_parameter_names(options_));
    checkpoint_ = std::make_shared<checkpoint::Checkpoint>(std::move(*saved));
    return;
  }
  files_ = std::make_shared<checkpoint::WeightFiles>(plain_weights(options_.init_from));
  check_gpt2_names(gpt_parameter_names(options_), *files_, options_.init_from);
}

void GptValues::fill(const std::string& prefix, const torch::nn::Module& module) const {
  fill_values(prefix, module,
              [&](const std::string& name, const at::Tensor& parameter) { fill_whole(name, parameter); });
}

void GptValues::fill_whole(const std::string& name, const at::Tensor& parameter) const {
  if (checkpoint_) {
    load_parameter(*checkpoint_, name, parameter);
  } else if (files_) {
    load_gpt2_parameter(name, parameter, *files_, options_.init_from);
  } else {
    fill_one(name, parameter);
  }
}

void GptValues::fill_one(const std::string& name, const at::Tensor& parameter) const {
  if (parameter.dim() == 1) {
    models::fill(parameter, name.find(".ln_") != std::string::npos && name.ends_with("weight") ? 1.0 : 0.0);
    return;
  }
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
  fill_normal(parameter, name.ends_with("c_proj.weight") ? residual : 0.02, options_.seed, name);
}

} // namespace trireme::models
