#pragma once

#include <trireme/parallel/pipeline/layer.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme::pipeline {

/// What arrived is a leaf, and leaves must not be modified in place; a layer such as ReLU(inplace) may
/// want to. The result shares the leaf's memory but is a tensor of its own to autograd.
class Arrive : public torch::autograd::Function<Arrive> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& leaf) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    return leaf.view(leaf.sizes());
  }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors& grads) {
    return grads;
  }
};

inline Tensors arrive(const Tensors& inputs) {
  Tensors tensors;
  for (const at::Tensor& input : inputs) {
    tensors.push_back(input.defined() && input.requires_grad() && at::GradMode::is_enabled() ? Arrive::apply(input)
                                                                                             : input);
  }
  return tensors;
}

} // namespace trireme::pipeline
