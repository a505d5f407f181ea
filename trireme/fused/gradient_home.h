#pragma once

#include <ATen/core/Tensor.h>

/// Weight gradients written where they stay. By default an operator's backward makes a tensor for a parameter's
/// gradient, and autograd keeps it or adds it to `grad`. A parameter whose gradients have memory of their own, such as
/// a flat buffer, has a GradientHome: backward may write there, which saves that tensor and a pass over it.
namespace trireme::fused {

struct GradientMemory {
  at::Tensor memory;     ///< of the parameter's shape and type, contiguous; undefined: return the gradient to autograd
  bool is_first = false; ///< nothing is in it: write every element. False: add to what this backward wrote

  explicit operator bool() const { return memory.defined(); }
};

/// The owner of a parameter's gradient. It is an interface of the parameter's post-accumulate-grad hook, so it ends
/// with that hook.
class GradientHome {
 public:
  GradientHome() = default;
  virtual ~GradientHome() = default;
  GradientHome(const GradientHome&) = delete;
  GradientHome& operator=(const GradientHome&) = delete;

  /// Makes the memory the parameter's `grad`. After it the running backward counts as one that gave a gradient, even if
  /// autograd receives an undefined one. Returns no memory where the ordinary path is needed.
  virtual GradientMemory open() = 0;
};

/// Whether gradients of this tensor may be written by gradient_memory(): a leaf with a GradientHome.
bool has_gradient_home(const at::Tensor& parameter);

/// In a backward: the memory for this operator's gradient of `parameter`. The caller writes or adds the gradient on the
/// current stream before it returns, and gives autograd an undefined one. Any other operator of the same backward may
/// return its gradient as usual.
///
/// No memory, so that autograd gets the gradient: without a home; with create_graph; in torch::autograd::grad(); if the
/// program registered a hook on the parameter, which has to see the gradient; and where GradientHome::open() refuses.
GradientMemory gradient_memory(const at::Tensor& parameter);

/// The same for an operator that can only write: memory if is_first, otherwise undefined.
at::Tensor unwritten_gradient_memory(const at::Tensor& parameter);

} // namespace trireme::fused
