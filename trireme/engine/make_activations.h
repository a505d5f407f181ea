#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/step_state.h>

namespace trireme::engine {

/// What "activation_checkpointing" asks for, once the model is built; nothing if it asks for nothing.
/// Errors: InputError for what does not go together.
void make_activations(Parts& parts, const InitializeOptions& options, int64_t ranks_of_host);

/// What "auto" chose when the checkpoint with this entry was saved is chosen again, without measuring, if model, layout
/// and "activation_checkpointing" are the same and no step was taken; where a part turns out to get more bytes, all is
/// measured as ever. Collective over all ranks.
void adopt_chosen_ways(const Parts& parts, StepState& state, const nlohmann::json& saved);

/// Ends a step for them. After the second one the ranks of a stage agree on what becomes of each part, if that is to be
/// chosen: collective over all ranks then. Errors: InputError after the first step if "layers" matches no class.
void end_step_of_activations(const Parts& parts, StepState& state);

} // namespace trireme::engine
