#include <trireme/parallel/tensor/split_module.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

namespace trireme::tensor {
namespace {

// Module::modules() needs a shared_ptr to the first module, which does not exist while it is built.
void add_placements(const torch::nn::Module& module, Placements& found) {
  if (const auto* const split = dynamic_cast<const SplitModule*>(&module)) {
    const auto parameters = module.named_parameters(/*recurse=*/false);
    const auto buffers = module.named_buffers(/*recurse=*/false);
    for (const auto& [name, placement] : split->placements()) {
      const at::Tensor* const tensor = parameters.contains(name) ? parameters.find(name) : buffers.find(name);
      if (tensor != nullptr && tensor->defined()) {
        found.emplace(tensor->unsafeGetTensorImpl(), placement);
      }
    }
  }
  for (const auto& child : module.children()) {
    add_placements(*child, found);
  }
}

} // namespace

Placements placements_of(const torch::nn::Module& model) {
  Placements found;
  add_placements(model, found);
  return found;
}

at::Tensor box_of(const at::Tensor& whole, const bucket::Placement& placement, at::IntArrayRef sizes) {
  at::Tensor box = whole.unflatten(0, {placement.parts, whole.size(0) / placement.parts});
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    const int64_t size = dim == 0 ? sizes[0] / placement.parts : sizes[dim];
    box = box.narrow(dim + 1, placement.box_offset[dim], size);
  }
  return placement.parts == 1 ? box.squeeze(0) : box.flatten(0, 1);
}

} // namespace trireme::tensor
