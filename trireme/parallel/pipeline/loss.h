#pragma once

#include <trireme/parallel/pipeline/layer_call.h>

#include <torch/nn/module.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace trireme::pipeline {

/// Loss of the last layer's outputs: a 0-dim tensor, the mean over the samples. Made from any callable.
class Loss {
 public:
  using OfOutputs = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;
  /// `module`: the last layer's, null for a function. Returns undefined if it
  /// knows no such layer, or would need its outputs.
  using OfLastLayer = std::function<at::Tensor(const std::shared_ptr<torch::nn::Module>& module, const Tensors& inputs,
                                               const Tensors& targets)>;

  Loss(std::nullptr_t = nullptr) {}
  template <typename F>
    requires(!std::same_as<std::decay_t<F>, Loss> && std::constructible_from<OfOutputs, F>)
  Loss(F&& of_outputs) : of_outputs_(std::forward<F>(of_outputs)) {}
  /// The last layer and the loss in one, for training: the same value without the layer's outputs, which may be large.
  Loss(OfOutputs of_outputs, OfLastLayer with_last_layer)
      : of_outputs_(std::move(of_outputs)), with_last_layer_(std::move(with_last_layer)) {}

  explicit operator bool() const { return of_outputs_ != nullptr; }
  at::Tensor operator()(const Tensors& outputs, const Tensors& targets) const { return of_outputs_(outputs, targets); }
  /// Empty: there is no such form.
  const OfLastLayer& with_last_layer() const { return with_last_layer_; }

 private:
  OfOutputs of_outputs_;
  OfLastLayer with_last_layer_;
};

} // namespace trireme::pipeline
