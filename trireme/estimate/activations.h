#pragma once

#include <trireme/estimate/memory.h>

namespace trireme::estimate {

/// The most that a stage holds of activations, of gradients of activations, and of parameters' gradients that autograd has just made:
/// micro-batches in flight, and the backward that needs most.
Item activations_of(const Run& run, int64_t stage);

} // namespace trireme::estimate
