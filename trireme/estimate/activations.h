#pragma once

#include <trireme/estimate/memory.h>

#include <cstdint>
#include <vector>

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

/// Bytes of each layer's input if tensor ranks keep shares of it until the layer is recomputed (activations::Options::shares_inputs); 0 for all others.
std::vector<int64_t> shared_inputs(const Run& run);
/// Bytes that a rank of the stage sends in the backward of a micro-batch so that tensor ranks have them whole: (N - 1) shares for each.
int64_t gathered_inputs(const Run& run, int64_t stage);

/// A lower bound of what each of the layers [first, last) keeps of a micro-batch from forward to backward. No layers are recomputed together.
int64_t least_kept(const Run& run, int64_t first, int64_t last);

} // namespace trireme::estimate
