#pragma once

#include <trireme/fused/dropout.h>
#include <trireme/models/ranks.h>
#include <trireme/parallel/tensor/own_random.h>

#include <ATen/core/Tensor.h>

namespace trireme::models {

/// Dropout without cost for a probability of 0.
inline at::Tensor drop(const at::Tensor& x, double probability, bool training) {
  return probability > 0 && training ? fused::dropout(x, probability) : x;
}

/// Dropout between the split layers: each rank of `ranks` drops different elements of its part of the sequence, or all
/// drop the same.
inline at::Tensor drop(const at::Tensor& x, double probability, bool training, const ModelRanks& ranks) {
  if (probability == 0 || !training) {
    return x;
  }
  const comm::Group& group = ranks.tensor.group;
  const tensor::OwnRandom own(group.rank(), ranks.tensor.splits_sequence() ? group.size() : 1, x.device());
  return fused::dropout(x, probability);
}

/// residual + drop(x, ...), in one pass.
inline at::Tensor add_dropped(const at::Tensor& x, const at::Tensor& residual, double probability, bool training,
                              const ModelRanks& ranks) {
  if (probability == 0 || !training) {
    return residual + x;
  }
  const comm::Group& group = ranks.tensor.group;
  const tensor::OwnRandom own(group.rank(), ranks.tensor.splits_sequence() ? group.size() : 1, x.device());
  return fused::add_dropout(x, residual, probability);
}

} // namespace trireme::models
