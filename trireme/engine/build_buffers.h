#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/shards/zero/model_units.h>

namespace trireme::engine {

/// Moves the model's parameters into flat buffers, sharded according to `options`. Copies the first replica's values to
/// all replicas, and passes the buffers to the reducer. Collective. Errors: InputError.
void build_buffers(Parts& parts, const InitializeOptions& options, zero::ModelUnits& units);

} // namespace trireme::engine
