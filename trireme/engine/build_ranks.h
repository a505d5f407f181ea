#pragma once

#include <trireme/comm/world.h>
#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

/// Sets batch sizes and types, this rank's groups on the mesh, its device and its folders of files. The types of
/// `options` must be resolved. Collective. Errors: InputError for a mesh that does not fit the model, batch sizes that
/// do not fit the ranks, or a folder that cannot be made.
void build_ranks(Parts& parts, const comm::World& world, const InitializeOptions& options, at::Device device);

} // namespace trireme::engine
