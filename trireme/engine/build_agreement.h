#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>
#include <trireme/optim/flat_optimizer.h>

#include <memory>

namespace trireme::engine {

/// Makes the GradientSync that the options ask for (data parallelism, ZeRO, hybrid sharding, averaging, compression, or
/// the program's own) and opens the groups of a GPU. Collective. Errors: InputError.
void build_agreement(Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
