#pragma once

#include <trireme/train/commands.h>

#include <trireme/comm/world.h>
#include <trireme/config/run_file.h>

#include <c10/core/Device.h>

#include <cstdint>

namespace trireme::train {

/// A run as its ranks know it.
struct RunOfRanks {
  const TrainCommand& command;
  const config::RunConfig& run; ///< with precision resolved
  const config::RunTypes& types;
  int64_t ranks = 1; ///< of all workers
};

/// Refuses a run whose ranks need more of their GPUs than is free there (check_device_memory()), before anything is
/// built. Ranks of a host that name one GPU share what is free on it. Does nothing on the CPU, with --no-memory-check,
/// for a model that nobody can estimate, and on a device that does not report its memory. Collective. Errors:
/// InputError on every rank.
void check_device_room(const RunOfRanks& of, const comm::World& world, c10::Device device);

} // namespace trireme::train
