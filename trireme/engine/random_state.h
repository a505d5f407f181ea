#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/engine/parts.h>
#include <trireme/mesh/mesh.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <vector>

namespace trireme::engine {

/// The axes with several ranks, in the mesh's order, as checkpoints store them: [["pipe", 2], ["tensor", 4]]; [] for
/// one rank. They determine which ranks draw the same random numbers.
nlohmann::json axes_in_use(const mesh::MeshShape& shape);

/// The states of this rank's generators (CPU and device) as tensors of a checkpoint.
std::vector<checkpoint::TensorShard> random_states(const Parts& parts);

/// Seeds this rank's generators from the run's seed, the step and the rank's coordinates: tensor ranks of one replica
/// draw the same numbers, all others different ones.
void seed_generators(const Parts& parts, int64_t step);

/// Restores this rank's states from `saved` if it was saved on the same mesh. Otherwise, and for checkpoints of
/// versions that did not store their mesh, seeds the generators anew: with a state that two tensor ranks shared, two
/// replicas would draw the same dropout.
void continue_random_states(const Parts& parts, const checkpoint::Checkpoint& saved, int64_t step);

} // namespace trireme::engine
