#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

// What does not go together in initialize()'s options, or with what is made of them. Errors of all: InputError that
// says what to leave out.

void check_options(const InitializeOptions& options);
/// Gives the list of layers what the configuration says of pipelines; refuses keys that need one if the model is in one
/// piece.
void apply_pipeline(const InitializeOptions& options);
/// What engine.tensor_parallel asks of the mesh and the model; the mesh has the tensor axis that it says, or the
/// program's own.
void check_split(const InitializeOptions& options);
void check_mesh(const mesh::Mesh& mesh, int stages);
void check_step_group(const parallel::GradientSync& sync);
void check_step_in_backward(const Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
