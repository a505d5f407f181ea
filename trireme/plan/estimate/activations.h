#pragma once

#include <trireme/plan/estimate/memory.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// The most that a stage holds of activations, of gradients of activations, and of parameters' gradients that autograd
/// has just made: micro-batches in flight, and the backward that needs most.
Item activations_of(const Run& run, int64_t stage);

/// What a rank of the stage has of activations elsewhere at a time, and moves there, and back, in a step: less comes
/// back, because the last part may still be there. Chosen by "auto": the inputs of parts, which the first two steps
/// move to files, or to the host of a device; there at most all of them.
struct ActivationMoves {
  /// The device's host; nothing on the CPU. libtorch takes pinned memory in powers of two for each storage, which may
  /// be up to twice as much.
  int64_t on_host = 0;
  int64_t surely_on_host = 0;
  int64_t in_files = 0;
  /// On the host of a device: what is on its way to files.
  int64_t staged = 0;
  int64_t moved_to_host = 0;
  int64_t moved_to_files = 0;
};
ActivationMoves activation_moves(const Run& run, int64_t stage);

/// Which layers the model calls as parts, whose activations Options says something of.
std::vector<bool> parts(const Run& run);

/// Ways that Options::choices must have: one for each part, in a list of layers for each layer up to the last part.
int64_t places_of_parts(const Run& run);
/// Why Options is for another model: "layers" matches nothing, or "choices" are not for as many; empty: it is not.
std::string why_other_parts(const Run& run);

/// Bytes of each layer's input if tensor ranks keep shares of it until the layer is recomputed
/// (activations::Options::shares_inputs); 0 for all others.
std::vector<int64_t> shared_inputs(const Run& run);
/// What a rank keeps of a layer that is recomputed: its input, or its share of that. `shared`: of shared_inputs().
int64_t kept_input(const Run& run, const std::vector<int64_t>& shared, int64_t layer);
/// Bytes that a rank of the stage sends in the backward of a micro-batch so that tensor ranks have them whole: (N - 1)
/// shares for each.
int64_t gathered_inputs(const Run& run, int64_t stage);

/// A lower bound of what each of the layers [first, last) keeps of a micro-batch from forward to backward. No layers
/// are recomputed together.
int64_t least_kept(const Run& run, int64_t first, int64_t last);

} // namespace trireme::estimate
