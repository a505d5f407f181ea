#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/optimizer_step.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

/// Makes optimizer, schedule, activations and loader for the buffers. `step` must outlive the parts. Collective.
/// Errors: InputError; also for a disk that is full on some ranks.
void build_stepper(Parts& parts, const InitializeOptions& options, OptimizerStep& step, int ranks_of_host);

} // namespace trireme::engine
