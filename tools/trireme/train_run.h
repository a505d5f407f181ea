#pragma once

#include "commands.h"

namespace trireme::tools {

/// One rank of `trireme train`. Returns the exit status.
int train(const TrainCommand& command);

} // namespace trireme::tools
