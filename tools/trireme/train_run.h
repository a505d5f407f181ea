#pragma once

#include "commands.h"

#include <trireme/comm/world.h>

namespace trireme::tools {

/// One rank of `trireme train`. Returns the exit status.
int train(const TrainCommand& command);
/// The same in a world that is there already.
int train(const TrainCommand& command, comm::World& world);

} // namespace trireme::tools
