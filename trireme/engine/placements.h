#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/shards/bucket/flat_layout.h>

#include <map>

namespace trireme::engine {

/// Returns the placement of every parameter, by TensorImpl. It merges what the layers define (split among tensor ranks,
/// tiles) with InitializeOptions::placement: a rank may have experts [2, 4), with some columns of each.
///
/// For a parameter that tensor ranks have whole, the program may give another reduce_group or box, the same on each of
/// them. If it gives each tensor rank a different box, the program splits the parameter, and only its placement counts.
/// For a parameter that a layer splits, the program may give boxes along the other dims, in the shape that the rank
/// sees. Collective. Errors: InputError on every rank, naming the parameter, if the two contradict each other.
std::map<const void*, bucket::Placement> merged_placements(const Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
