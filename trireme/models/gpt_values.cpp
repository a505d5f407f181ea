#include <trireme/models/gpt_values.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/weight_files.h>
#include <trireme/models/gpt2_weights.h>
#include <trireme/models/initialize.h>

#include <torch/nn/module.h>

#include <cmath>

namespace trireme::models {

GptValues::GptValues(const GptOptions& options) : options_(options) {
  if (!options_.init_from.empty()) {
    files_ = std::make_shared<checkpoint::WeightFiles>(checkpoint::WeightFiles::open(options_.init_from));
  }
}

void GptValues::fill(const std::string& prefix, const torch::nn::Module& module) const {
  for (const auto& item : module.named_parameters()) {
    const std::string name = concat(prefix, '.', item.key());
    if (files_) {
      load_gpt2_parameter(name, item.value(), *files_, options_.init_from);
    } else {
      fill_one(name, item.value());
    }
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
