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

/// A backward pass that computes the gradients of parameters after those of inputs.
///
/// Captures the incoming gradients of the nodes where parameters join the path from outputs
/// to inputs. The second half runs those nodes once more, for the parameters alone. The
/// first half does everything if no input requires a gradient, or a parameter is also
/// reached from further up because it is used twice. Custom functions with parameters inside
/// (recomputation) do all their work in the first half. Cost: both halves take as long as
/// one backward, plus a few microseconds per parameter. Source: Qi et al. 2023,
/// arXiv:2401.10241.
class SplitBackward {
 public:
  /// `parameters`: the parameters' grad accumulators (torch::autograd::impl::grad_accumulator).
  SplitBackward(std::vector<torch::autograd::Edge> roots, Tensors grads, const Tensors& inputs,
                const std::unordered_set<torch::autograd::Node*>& parameters);

  /// True if the second half has work to do.
  bool puts_off() const { return !whole_; }
  /// Accumulates into the inputs' grad.
  void run_inputs();
  /// Accumulates into the parameters' grad and frees the graph. Calls `before` with the grad
  /// accumulator of one of the parameters before each joint: other hooks of the graph may not see the
  /// second half.
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
