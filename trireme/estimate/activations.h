#pragma once

#include <trireme/estimate/memory.h>

namespace trireme::estimate {

/// The most that a stage holds of activations, of gradients of activations, and of parameters' gradients that autograd has just made:
/// micro-batches in flight, and the backward that needs most.
Item activations_of(const Run& run, int64_t stage);

/// Bytes that a rank sends in the backward of a micro-batch so that tensor ranks, who keep shares of the inputs of recomputed layers, have them whole
/// (activations::Options::shares_inputs): (N - 1) shares for each.
int64_t gathered_inputs(const Run& run, int64_t stage);

} // namespace trireme::estimate
