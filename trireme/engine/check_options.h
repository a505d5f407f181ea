#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

// Checks of the options of initialize() and of what is built from them. Errors of all: InputError with the option to
// remove.

void check_options(const InitializeOptions& options);
/// Checks the table of conflicting options (config/compatibility.h), with the resolved types and device.
void check_compatibility(const InitializeOptions& options, const precision::PrecisionOptions& resolved,
                         const comm::World& world, at::Device device);
/// Checks that mesh and model fit engine.tensor_parallel: the mesh has the tensor axis that it asks for, or the
/// program's own.
void check_split(const InitializeOptions& options);
void check_mesh(const mesh::Mesh& mesh, int stages);

} // namespace trireme::engine
