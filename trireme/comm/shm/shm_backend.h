#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Largest size of one group.
inline constexpr int kMostShmRanks = 64;

/// Opens a group of ranks of one host over memory that they share.
///
/// All ranks read and write tensors from allocate() in place; others are copied through a staging area in steps of 1
/// MiB. float, double, half, bfloat16 and integers are added in rank order (half and bfloat16 in float), so that all
/// ranks get the same bits. Waiting ranks do the work: no threads, and a rank that computes is not disturbed. Bytes
/// sent by a rank, P bytes and N ranks, counted as on a network: all_reduce 2P(N-1)/N; reduce_scatter, all_gather and
/// all_to_all P(N-1)/N; broadcast P(N-1) at the root; send P. Errors: Trouble when the members cannot map each other's
/// memory (containers, other users) or one does not connect in time.
std::shared_ptr<Backend> connect_shm(const GroupSetup& setup);

/// True if this machine has all requirements.
bool shm_available();

/// True if connect_shm can serve this group: one host, at most kMostShmRanks.
bool shm_suits(const GroupSetup& setup);

} // namespace trireme::comm
