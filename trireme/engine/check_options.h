#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

// What does not go together in initialize()'s options, or with what is made of them. Errors of all: InputError that
// says what to leave out.

void check_options(const InitializeOptions& options);
/// What does not go together (config/compatibility.h), with the types and the device that were chosen.
void check_compatibility(const InitializeOptions& options, const precision::PrecisionOptions& resolved,
                         const comm::World& world, at::Device device);
/// What engine.tensor_parallel asks of the mesh and the model; the mesh has the tensor axis that it says, or the
/// program's own.
void check_split(const InitializeOptions& options);
void check_mesh(const mesh::Mesh& mesh, int stages);
void check_step_group(const parallel::GradientSync& sync);

} // namespace trireme::engine
