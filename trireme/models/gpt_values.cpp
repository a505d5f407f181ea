#include <trireme/models/gpt_values.h>

#include <trireme/base/error.h>
#include <trireme/models/adapters.h>
#include <trireme/models/huggingface_families.h>
#include <trireme/models/initialize.h>

#include <cmath>

namespace trireme::models {

ModelValues gpt_values(const GptOptions& options) {
  if (options.heads < 1 || options.hidden % options.heads != 0) {
    throw InputError("gpt", concat("heads must divide hidden, got ", options.heads, " and ", options.hidden));
  }
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
  const auto random = [residual, seed = options.seed](const std::string& name, const at::Tensor& parameter) {
    if (is_adapter(name)) {
      fill_adapter(name, parameter, seed);
    } else if (parameter.dim() == 1) {
      fill(parameter, name.find(".ln_") != std::string::npos && name.ends_with("weight") ? 1.0 : 0.0);
    } else {
      fill_normal(parameter, name.ends_with("c_proj.weight") ? residual : 0.02, seed, name);
    }
  };
  return ModelValues(gpt2_family(), layer_shapes(options), options.init_from, options.lora, random);
}

} // namespace trireme::models
