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

/// malloc's threshold for a model at stage 3, or with states in files: freed blocks of at least this size go back to
/// the system; smaller ones are reused. In proportion to the model, like what malloc keeps then. With 1 MiB a step of
/// 124 million parameters took 1.3 times as long as with 4, because of the pages of its activations.
inline int64_t returned_block_bytes(int64_t parameters, bool files) {
  constexpr int64_t kMiB = 1 << 20, kPieces = 128;
  return std::clamp(4 * parameters / kPieces, (files ? 1 : 4) * kMiB, 8 * kMiB);
}

} // namespace trireme::train
