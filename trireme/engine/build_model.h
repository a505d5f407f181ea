#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/step_state.h>
#include <trireme/shards/zero/model_units.h>

namespace trireme::engine {

/// Builds this rank's part of the model in the type of computation, and returns its units. At ZeRO stage 3 a list of
/// layers is sharded layer by layer. The result refers to `parts` and `state`. Collective. Errors: InputError; if
/// another engine trains the model, before anything of it is changed.
zero::ModelUnits build_model(Parts& parts, const StepState& state, const InitializeOptions& options);

} // namespace trireme::engine
