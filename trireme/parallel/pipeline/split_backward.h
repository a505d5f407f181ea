#pragma once

#include <trireme/parallel/pipeline/message.h>

#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace trireme::pipeline {

/// shared_ptr or intrusive_ptr, by libtorch's version.
using NodePtr = decltype(torch::autograd::Edge::function);

/// A backward pass whose gradients for the parameters come later than those for the inputs.
///
/// The nodes of the graph where parameters join the path from outputs to inputs get their incoming
/// gradients captured; the second half runs those nodes once more, for the parameters alone.
/// If that is impossible (no input requires a gradient, or a parameter is also reached from
/// further up because it is used twice), the first half does everything.
/// Custom functions with parameters inside (recomputation) do all their work in the first half.
/// Cost: the two halves together are one backward and a few microseconds a parameter.
/// Source: Qi et al. 2023, arXiv:2401.10241.
class SplitBackward {
 public:
  /// `parameters`: the parameters' grad accumulators (torch::autograd::impl::grad_accumulator).
  SplitBackward(std::vector<torch::autograd::Edge> roots, Tensors grads, const Tensors& inputs,
                const std::unordered_set<torch::autograd::Node*>& parameters);

  /// Whether the second half has work to do.
  bool puts_off() const {
    return !whole_;
  }
  /// Accumulates into the inputs' grad.
  void run_inputs();
  /// Accumulates into the parameters' grad and frees the graph. Calls `before` with the grad accumulator of one of the
  /// parameters before each node that they join the path at: other hooks of the graph do not always see the second
  /// half.
  void run_weights(const std::function<void(torch::autograd::Node* parameter)>& before = nullptr);

 private:
  struct Joint {
    NodePtr node;
    std::vector<torch::autograd::Edge> parameters;
    Tensors grads; // for each of the node's inputs
  };
  void find_joints(const std::unordered_set<torch::autograd::Node*>& parameters);

  std::vector<torch::autograd::Edge> roots_;
  Tensors grads_;
  Tensors inputs_;
  std::vector<Joint> joints_;
  bool whole_ = false;
};

} // namespace trireme::pipeline
