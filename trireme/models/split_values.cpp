#include <trireme/models/split_values.h>

#include <trireme/base/error.h>
#include <trireme/parallel/tensor/split_module.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

namespace trireme::models {

void fill_values(const std::string& prefix, const torch::nn::Module& module,
                 const std::function<void(const std::string& name, const at::Tensor& parameter)>& fill) {
  const torch::NoGradGuard no_grad;
  const tensor::Placements split = tensor::placements_of(module);
  for (const auto& item : module.named_parameters()) {
    const std::string name = concat(prefix, '.', item.key());
    const auto part = split.find(item.value().unsafeGetTensorImpl());
    if (part == split.end()) {
      fill(name, item.value());
    } else {
      const at::Tensor whole = torch::empty(part->second.global_shape, item.value().options());
      fill(name, whole);
      item.value().copy_(tensor::box_of(whole, part->second, item.value().sizes()));
    }
  }
}

} // namespace trireme::models
