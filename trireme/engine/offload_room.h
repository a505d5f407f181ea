#pragma once

#include <trireme/engine/initialize.h>
#include <trireme/engine/parts.h>

#include <cstdint>
#include <vector>

/// Whether the files of offload have room, before anything of them is reserved: all ranks of a host together, on each
/// disk. What a refusal names besides is the nearest configuration that fits. A run file's estimate says it before
/// ranks start (memory/offload/preflight.h); this is for every program.
namespace trireme::engine {

/// What a rank is about to have in files at ZeRO stage 3, or a little less: gaps up to whole blocks are not known yet.
struct ShardBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
};

/// Before the flat buffers are made. Nothing without files of parameters. Collective. Errors: InputError on every rank.
void check_room_for_shards(const Parts& parts, const InitializeOptions& options, const ShardBytes& own);

/// Before masters and optimizer states are made for `buffers`. Nothing without files of states. Collective. Errors:
/// InputError on every rank.
void check_room_for_states(const Parts& parts, const InitializeOptions& options,
                           const std::vector<bucket::FlatParameters*>& buffers);

/// Says, on rank 0, where masters, states, gradients and parameters are and how many bytes, and what defaults keep from
/// being moved (estimate::what_stays()).
void note_offload(const Parts& parts, const InitializeOptions& options);

} // namespace trireme::engine
