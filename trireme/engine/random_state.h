#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/parts.h>
#include <trireme/mesh/mesh.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <vector>

namespace trireme::engine {

/// The axes along which a mesh has several ranks, in its order, for checkpoints: [["pipe", 2], ["tensor", 4]]. One
/// rank: []. Which ranks draw the same random numbers follows from it.
nlohmann::json axes_in_use(const mesh::MeshShape& shape);

/// The states of this rank's generators, the CPU's and its device's, as tensors of a checkpoint.
std::vector<checkpoint::TensorShard> random_states(const Parts& parts);

/// Seeds this rank's generators from the run's seed, the step and the rank's place in the mesh: tensor ranks of one
/// replica draw the same numbers, all others different ones.
void seed_generators(const Parts& parts, int64_t step);

/// Puts back the states that `saved` has for this rank if it was saved on the same mesh. Otherwise, and for checkpoints
/// of versions that did not say their mesh, seeds the generators anew: a state that two tensor ranks shared would make
/// two replicas draw the same dropout.
void continue_random_states(const Parts& parts, const checkpoint::Checkpoint& saved, int64_t step);

} // namespace trireme::engine
