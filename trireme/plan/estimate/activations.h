#pragma once

#include <trireme/plan/estimate/memory.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// Peak bytes on a stage of activations, their gradients, and parameter gradients that autograd has just made:
/// micro-batches in flight, and the backward that needs most.
Item activations_of(const Run& run, int64_t stage);

/// Activations that a rank of the stage has moved at a time, and bytes that it moves out per step. Less comes back,
/// because the last part may still be in memory. With "auto": the inputs of parts, which the first two steps move to
/// files or to the host of a GPU; for the host an upper bound.
struct ActivationMoves {
  /// On the GPU's host; 0 on the CPU. libtorch rounds each pinned storage up to a power of two, up to twice the bytes.
  int64_t on_host = 0;
  int64_t surely_on_host = 0;
  int64_t in_files = 0;
  /// On the host of a GPU: staging of what is being written to files.
  int64_t staged = 0;
  int64_t moved_to_host = 0;
  int64_t moved_to_files = 0;
};
ActivationMoves activation_moves(const Run& run, int64_t stage);

/// Which layers the model calls as parts to which Options applies.
std::vector<bool> parts(const Run& run);

/// Length that Options::choices must have: the number of parts, or in a list of layers the layers up to the last part.
int64_t places_of_parts(const Run& run);
/// Why Options belong to another model: "layers" matches nothing, or "choices" have another length. Empty: they fit.
std::string why_other_parts(const Run& run);

/// Bytes of each layer's input if tensor ranks keep shares of it until the layer is recomputed
/// (activations::Options::shares_inputs); 0 for all others.
std::vector<int64_t> shared_inputs(const Run& run);
/// Bytes that a rank keeps of a recomputed layer: its input, or its share of it. `shared`: result of shared_inputs().
int64_t kept_input(const Run& run, const std::vector<int64_t>& shared, int64_t layer);
/// Bytes that a rank of the stage sends in the backward of a micro-batch to gather shared inputs: (N - 1) shares for
/// each.
int64_t gathered_inputs(const Run& run, int64_t stage);

/// Lower bound of what each of the layers [first, last) keeps of a micro-batch from forward to backward, without groups
/// of recomputed layers.
int64_t least_kept(const Run& run, int64_t first, int64_t last);

} // namespace trireme::estimate
