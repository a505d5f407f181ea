#pragma once

#include <trireme/parallel/pipeline/layer.h>

#include <cstdint>
#include <vector>

namespace trireme::pipeline {

/// The cost of one micro-batch in each layer.
struct LayerProfile {
  std::vector<double> seconds;          ///< forward and backward, median of several
  std::vector<double> parameter_bytes;  ///< of trained parameters
  std::vector<double> activation_bytes; ///< outputs that the next layer gets

  /// Memory of each layer: parameters with gradient and two optimizer states, and its
  /// activations of `in_flight` micro-batches.
  std::vector<double> bytes(int64_t in_flight) const;
};

/// Builds one layer after the other, runs it on the output of the layer before, and frees it. Lazily built
/// layers of the same class, size and input are measured once.
/// Memory: one layer and two micro-batches of activations. The random state, gradients and buffers do not change.
/// Errors: InputError without sample inputs; exceptions of layers.
LayerProfile profile_layers(const LayerList& layers, const Tensors& sample_inputs);

} // namespace trireme::pipeline
