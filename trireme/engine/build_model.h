#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/step_state.h>
#include <trireme/zero/model_units.h>

#include <vector>

namespace trireme::engine {

/// Builds what of the model is this rank's, in the type that is computed in, and says what its units are. A list of
/// layers at ZeRO stage 3 is sharded layer by layer. What it builds refers to `parts` and `state`.
zero::ModelUnits build_model(Parts& parts, const StepState& state, const InitializeOptions& options);

/// Moves the parameters into flat buffers, which the engine then has, and makes those of all replicas equal.
/// Collective. Returns the buffers that are trained.
std::vector<bucket::FlatParameters*> flatten(Parts& parts, const InitializeOptions& options, zero::ModelUnits& units);

} // namespace trireme::engine
