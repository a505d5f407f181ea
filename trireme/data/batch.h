#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::data {

/// A target that does not count in the loss: PyTorch's ignore_index.
inline constexpr int64_t kIgnoredTarget = -100;

/// A micro-batch of one rank. The first dim of every tensor is the sample.
struct Batch {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  /// Number of real samples; the rest are repeats that pad the last micro-batch.
  int64_t samples = 0;
  /// Identifies its samples; 0: unknown. Equal on all ranks that read the same samples.
  uint64_t fingerprint = 0;
  /// The fingerprint is identify()'s: its upper half hashes the inputs, its lower half the targets; each is 0 if there
  /// are none.
  bool identified_by_contents = false;
  /// Dataset::masks_targets(): samples may have different numbers of targets that count.
  bool masks_targets = false;
  /// Factor of its loss, a mean over its targets that count. An engine multiplies by it. RepeatingLoader sets it so
  /// that the mean over the micro-batches of a step and the ranks is the mean over all targets that count.
  double loss_weight = 1;

  const at::Tensor& input() const { return inputs.at(0); }
  const at::Tensor& target() const { return targets.at(0); }
};

/// Sets a missing fingerprint from the contents of the tensors: types, shapes and bytes. Skips tensors on a GPU,
/// because reading them would wait for it. Cost: one read of the bytes, several GB/s.
void identify(Batch& batch);

/// True if the two batches cannot have the same samples. Does not compare missing halves or fingerprints, nor names
/// with contents.
bool are_of_other_samples(uint64_t a, bool a_by_contents, uint64_t b, bool b_by_contents);

} // namespace trireme::data
