#pragma once

#include <trireme/estimate/memory.h>

namespace trireme::estimate {

/// The most that a stage holds of activations, of gradients of activations, and of parameters' gradients that autograd has just made:
/// micro-batches in flight, and the backward that needs most.
Item activations_of(const Run& run, int64_t stage);

/// What a rank of the stage has of activations in files at a time, and moves there, and back, in a step. Chosen by "auto": the inputs of parts, which the first two steps move.
struct ActivationFiles {
  int64_t bytes = 0;
  int64_t moved = 0;
};
ActivationFiles activation_files(const Run& run, int64_t stage);

/// Bytes that a rank sends in the backward of a micro-batch so that tensor ranks, who keep shares of the inputs of recomputed layers, have them whole
/// (activations::Options::shares_inputs): (N - 1) shares for each.
int64_t gathered_inputs(const Run& run, int64_t stage);

} // namespace trireme::estimate
