#include <trireme/train/freeze.h>

#include <trireme/parallel/pipeline/count_parameters.h>
#include <trireme/parallel/pipeline/frozen.h>

#include <torch/nn/module.h>

#include <set>
#include <string>
#include <vector>

namespace trireme::train {
namespace {

std::set<std::string> frozen_names(const config::FreezeOptions& options, const std::vector<std::string>& names) {
  const std::vector<bool> is_frozen = config::frozen_of_all(options, names);
  std::set<std::string> found;
  for (size_t i = 0; i < names.size(); ++i) {
    if (is_frozen[i]) {
      found.insert(names[i]);
    }
  }
  return found;
}

} // namespace

void freeze(const config::FreezeOptions& options, torch::nn::Module& model) {
  if (!options.on()) {
    return;
  }
  const std::set<std::string> names = frozen_names(options, pipeline::parameter_names(model));
  for (const auto& item : model.named_parameters()) {
    if (names.contains(item.key())) {
      item.value().set_requires_grad(false);
    }
  }
}

pipeline::LayerList frozen(const config::FreezeOptions& options, pipeline::LayerList layers) {
  if (!options.on()) {
    return layers;
  }
  return pipeline::frozen(layers, [names = frozen_names(options, pipeline::parameter_names(layers))](
                                      const std::string& name) { return names.contains(name); });
}

} // namespace trireme::train
