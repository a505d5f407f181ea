#pragma once

#include <trireme/train/commands.h>
#include <trireme/train/registry.h>

#include <trireme/comm/world.h>

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace trireme::train {

/// One rank of `trireme train`. Returns the exit status.
int train(const TrainCommand& command, const Registry& registry);
/// The same in an existing world. `device`: overrides "training.device".
int train(const TrainCommand& command, const Registry& registry, comm::World& world,
          std::optional<at::Device> device = std::nullopt);

} // namespace trireme::train
