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
  /// The fingerprint is identify()'s: its upper half is of the inputs, its lower half of the targets, each 0 where
  /// there are none.
  bool identified_by_contents = false;

  const at::Tensor& input() const {
    return inputs.at(0);
  }
  const at::Tensor& target() const {
    return targets.at(0);
  }
};

/// Gives a batch without a fingerprint one of what its tensors hold: types, shapes and bytes. Tensors on a device are
/// left out, since reading them would wait for it. Cost: one read of the bytes, several GB a second.
void identify(Batch& batch);

/// Whether the two cannot be of the same samples. Halves, or fingerprints, that one of them does not have are not
/// compared, nor names with contents.
bool are_of_other_samples(uint64_t a, bool a_by_contents, uint64_t b, bool b_by_contents);

} // namespace trireme::data
