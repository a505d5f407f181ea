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
  /// Names the samples it is made of; 0: not known. Equal on all ranks that read the same ones.
  uint64_t fingerprint = 0;

  const at::Tensor& input() const {
    return inputs.at(0);
  }
  const at::Tensor& target() const {
    return targets.at(0);
  }
};

} // namespace trireme::data
