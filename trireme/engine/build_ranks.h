#pragma once

#include <trireme/comm/world.h>
#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

/// Settles what the options say of steps, and where this rank is: its groups on the mesh, its device, its folders of
/// files. The types of `options` are resolved. Collective. Errors: InputError for a mesh that does not fit the model,
/// batch sizes that do not fit the ranks, folders that cannot be made.
void build_ranks(Parts& parts, const comm::World& world, const InitializeOptions& options, at::Device device);

} // namespace trireme::engine
