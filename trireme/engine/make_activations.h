#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/engine/step_state.h>

namespace trireme::engine {

/// Applies "activation_checkpointing" to the built model; does nothing without that section. Errors: InputError for
/// options that conflict.
void make_activations(Parts& parts, const InitializeOptions& options, int64_t ranks_of_host);

/// Uses the choice of "auto" that the checkpoint with this entry saved, without measuring again. Requires the same
/// model, layout and "activation_checkpointing", and that no step was taken. If a part gets more bytes than saved,
/// everything is measured as usual. Collective over all ranks.
void adopt_chosen_ways(const Parts& parts, StepState& state, const nlohmann::json& saved);

/// Ends a step of the activations. After the second step, if "auto" is to choose, the ranks of a stage agree on each
/// part's policy: that is collective over all ranks. Errors: InputError after the first step if "layers" matches no
/// class.
void end_step_of_activations(const Parts& parts, StepState& state);

} // namespace trireme::engine
