#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::data {

/// One micro-batch of one rank. The first dim of every tensor is the sample.
struct Batch {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  /// How many samples are real; the rest are repeats that pad the last micro-batch.
  int64_t samples = 0;
  /// Identifies its samples; 0: unknown. Equal on all ranks that read the same samples.
  uint64_t fingerprint = 0;

  const at::Tensor& input() const {
    return inputs.at(0);
  }
  const at::Tensor& target() const {
    return targets.at(0);
  }
};

} // namespace trireme::data
