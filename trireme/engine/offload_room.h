#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

#include <cstdint>
#include <vector>

/// Checks free disk space for the files of offload before any is reserved: per disk, for all ranks of a host. A refusal
/// names the nearest configuration that fits. For every program; memory/offload/preflight.h checks run files before
/// ranks start.
namespace trireme::engine {

/// Bytes that a rank will have in files at ZeRO stage 3, or slightly less: padding to blocks is not known yet.
struct ShardBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
};

/// Call it before the flat buffers are made. Does nothing without parameters in files. Collective. Errors: InputError
/// on every rank.
void check_room_for_shards(const Parts& parts, const InitializeOptions& options, const ShardBytes& own);

/// Call it before masters and optimizer states are made for `buffers`. Does nothing without states in files.
/// Collective. Errors: InputError on every rank.
void check_room_for_states(const Parts& parts, const InitializeOptions& options,
                           const std::vector<bucket::FlatParameters*>& buffers);

/// Logs on rank 0 where masters, states, gradients and parameters are, with bytes, and what defaults keep in memory
/// (estimate::what_stays()).
void note_offload(const Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
