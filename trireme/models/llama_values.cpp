#include <trireme/models/llama_values.h>

#include <trireme/base/error.h>
#include <trireme/models/adapters.h>
#include <trireme/models/huggingface_families.h>
#include <trireme/models/initialize.h>

namespace trireme::models {
namespace {

void check(const LlamaOptions& options) {
  const auto refuse = [](const std::string& what, const char* next) { throw InputError("llama", what, next); };
  if (options.heads < 1 || (options.head_dim == 0 && options.hidden % options.heads != 0)) {
    refuse(concat("heads must divide hidden, got ", options.heads, " and ", options.hidden),
           "Choose model.heads that divides model.hidden, or give model.head_dim.");
  }
  if (options.kv_heads < 0 || options.heads % options.kv_heads_or_all() != 0) {
    refuse(concat("kv_heads must divide heads, got ", options.kv_heads, " and ", options.heads),
           "Choose model.kv_heads that divides model.heads.");
  }
  if (options.window < 0) {
    refuse(concat("a window of ", options.window, " tokens is negative"), "Set model.window to 0 for none.");
  }
}

} // namespace

ModelValues llama_values(const LlamaOptions& options) {
  check(options);
  const auto random = [seed = options.seed](const std::string& name, const at::Tensor& parameter) {
    if (is_adapter(name)) {
      fill_adapter(name, parameter, seed);
    } else if (parameter.dim() == 1) {
      fill(parameter, name.ends_with("norm.weight") ? 1.0 : 0.0);
    } else {
      fill_normal(parameter, 0.02, seed, name);
    }
  };
  return ModelValues(llama_family(), layer_shapes(options), options.init_from, options.lora, random);
}

} // namespace trireme::models
