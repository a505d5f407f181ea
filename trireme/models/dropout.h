#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/dropout.h>

namespace trireme::models {

/// Dropout that costs nothing where there is none.
inline at::Tensor drop(const at::Tensor& x, double probability, bool training) {
  return probability > 0 && training ? at::dropout(x, probability, true) : x;
}

} // namespace trireme::models
