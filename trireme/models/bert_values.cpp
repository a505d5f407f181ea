#include <trireme/models/bert_values.h>

#include <trireme/base/error.h>
#include <trireme/models/adapters.h>
#include <trireme/models/huggingface_families.h>
#include <trireme/models/initialize.h>

namespace trireme::models {

ModelValues bert_values(const BertOptions& options) {
  if (options.heads < 1 || options.hidden % options.heads != 0) {
    throw InputError("bert", concat("heads must divide hidden, got ", options.heads, " and ", options.hidden));
  }
  const std::filesystem::path base = options.lora.on() ? options.init_from : std::filesystem::path();
  const auto random = [base, seed = options.seed](const std::string& name, const at::Tensor& parameter) {
    if (!base.empty() && name.starts_with("bert.pooler.")) {
      throw InputError("lora", concat(base.string(), " has no ", name, ", which would be random and not trained"),
                       "Train all weights, or begin with a model that has a pooler.");
    }
    if (is_adapter(name)) {
      fill_adapter(name, parameter, seed);
    } else if (parameter.dim() == 1) {
      fill(parameter, name.ends_with("LayerNorm.weight") ? 1.0 : 0.0);
    } else {
      fill_normal(parameter, 0.02, seed, name);
    }
  };
  return ModelValues(bert_family(), bert_layer_shapes(options), options.init_from, options.lora, random);
}

} // namespace trireme::models
