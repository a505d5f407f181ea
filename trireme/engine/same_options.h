#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

namespace trireme::engine {

/// Compares what has to be equal on all ranks before anything waits for it, and finds out whether any rank has more than one reduce group.
/// Collective. Errors: InputError on every rank, naming what differs and on which ranks.
void check_same_options(Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
