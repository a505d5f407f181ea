#pragma once

#include <trireme/models/ranks.h>
#include <trireme/parallel/tensor/own_random.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/dropout.h>

namespace trireme::models {

/// Dropout without cost for a probability of 0.
inline at::Tensor drop(const at::Tensor& x, double probability, bool training) {
  return probability > 0 && training ? at::dropout(x, probability, true) : x;
}

/// Dropout between the split layers: each rank of `ranks` drops different elements of its part of the sequence, or all
/// drop the same.
inline at::Tensor drop(const at::Tensor& x, double probability, bool training, const ModelRanks& ranks) {
  if (probability == 0 || !training) {
    return x;
  }
  const comm::Group& group = ranks.tensor.group;
  const tensor::OwnRandom own(group.rank(), ranks.tensor.splits_sequence() ? group.size() : 1, x.device());
  return at::dropout(x, probability, true);
}

} // namespace trireme::models
