#pragma once

#include <trireme/fused/fused.h>

#include <ATen/core/Tensor.h>

namespace trireme::models {

/// What a linear layer makes of x, and the bias that is left to the pass behind it.
struct Projection {
  at::Tensor y;
  at::Tensor bias; ///< undefined: y has it
};

/// The bias is left to a pass of fused/ where tensors like x have one, which adds it on its way. Elsewhere the product
/// adds it at no cost, and in its own type: under autocast a bias in fp32 would make all that follows fp32.
template <class Linear>
Projection project(Linear& linear, const at::Tensor& x) {
  if (fused::has_passes(x)) {
    return {linear->project(x), linear->bias};
  }
  return {linear->forward(x), at::Tensor()};
}

} // namespace trireme::models
