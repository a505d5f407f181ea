#pragma once

#include <trireme/fused/fused.h>

#include <ATen/core/Tensor.h>

namespace trireme::models {

/// The product of a linear layer with x, and the bias that the next pass must add.
struct Projection {
  at::Tensor y;
  at::Tensor bias; ///< undefined: y has it
};

/// Leaves the bias to a pass of fused/ if tensors like x have one. Otherwise the product adds it at no cost, in its own
/// type: under autocast an fp32 bias would make everything after it fp32.
template <class Linear>
Projection project(Linear& linear, const at::Tensor& x) {
  if (fused::has_passes(x)) {
    return {linear->project(x), linear->bias};
  }
  return {linear->forward(x), at::Tensor()};
}

} // namespace trireme::models
