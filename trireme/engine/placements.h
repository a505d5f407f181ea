#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <map>

namespace trireme::engine {

/// Where every parameter of the model lies, by TensorImpl: what the layers say themselves (split among tensor ranks,
/// tiles), and what InitializeOptions::placement says besides. Both count: a rank may have experts [2, 4) of which its
/// tensor ranks each have some columns.
///
/// A parameter that tensor ranks have whole may get another reduce_group or a box from the program, the same on each of
/// them; where the program gives each tensor rank another box, it splits the parameter by itself, and its word stands
/// alone. Of a parameter that a layer splits, the program may say boxes along the other dims, in the shape that the
/// rank sees. Collective. Errors: InputError on every rank, naming the parameter, where the two contradict each other.
std::map<const void*, bucket::Placement> merged_placements(const Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
