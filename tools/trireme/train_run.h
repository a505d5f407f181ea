#pragma once

#include "commands.h"

#include <trireme/comm/world.h>

#include <c10/core/Device.h>

#include <optional>

namespace trireme::tools {

/// One rank of `trireme train`. Returns the exit status.
int train(const TrainCommand& command);
/// The same in a world that is there already. `device`: instead of what "training.device" says.
int train(const TrainCommand& command, comm::World& world, std::optional<at::Device> device = std::nullopt);

} // namespace trireme::tools
