#include <trireme/extensions/horovod/elastic/module_tensors.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>

namespace trireme::horovod::elastic {

std::vector<std::pair<std::string, at::Tensor>> tensors_of(
    const std::vector<std::pair<std::string, torch::nn::Module*>>& modules) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& [name, module] : modules) {
    for (const auto& item : module->named_parameters()) {
      all.emplace_back(concat(name, '.', item.key()), item.value().detach());
    }
    for (const auto& item : module->named_buffers()) {
      all.emplace_back(concat(name, '.', item.key()), item.value().detach());
    }
  }
  return all;
}

} // namespace trireme::horovod::elastic
