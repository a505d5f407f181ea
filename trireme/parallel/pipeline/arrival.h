#pragma once

#include <trireme/parallel/pipeline/layer.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme::pipeline {

/// Received tensors are leaves, which a layer such as ReLU(inplace) must not modify in place. The result shares the
/// leaf's memory, but is a different tensor to autograd.
class Arrive : public torch::autograd::Function<Arrive> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& leaf) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    return leaf.view(leaf.sizes());
  }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors& grads) { return grads; }
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
