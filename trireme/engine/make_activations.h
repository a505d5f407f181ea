#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

/// What "activation_checkpointing" asks for, once the model is built; nothing if it asks for nothing.
/// Errors: InputError for what does not go together.
void make_activations(Parts& parts, const InitializeOptions& options);

/// Ends a step for them. After the second one the ranks of a stage agree on what becomes of each part, if that is to be chosen: collective over all ranks then.
void end_step_of_activations(Parts& parts);

} // namespace trireme::engine
