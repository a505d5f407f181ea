#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/step_state.h>
#include <trireme/shards/zero/model_units.h>

namespace trireme::engine {

/// Builds what of the model is this rank's, in the type that is computed in, and says what its units are. A list of
/// layers at ZeRO stage 3 is sharded layer by layer. What it builds refers to `parts` and `state`. Collective. Errors:
/// InputError, before anything of the model is changed if another engine has it.
zero::ModelUnits build_model(Parts& parts, const StepState& state, const InitializeOptions& options);

} // namespace trireme::engine
