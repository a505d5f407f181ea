#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Opens a group over the MPI whose mpirun started this process (Open MPI or MPICH), with a communicator of its own.
///
/// CPU tensors of float, double, half, bfloat16 and integers; any number of elements (calls of at most 2^30 each).
/// Nonblocking collectives of MPI-3; MPI moves them while somebody waits for one of them, so nothing goes on behind a
/// rank that computes, except what the network does by itself. Sums of half and bfloat16 are added in float; all_reduce
/// rounds after every addition, reduce_scatter once (all_to_all into a temporary, added in rank order). Bytes sent, P
/// bytes and N ranks, by the closed forms of the usual algorithms (MPI chooses its own): all_reduce 2P(N-1)/N;
/// reduce_scatter, all_gather and all_to_all P(N-1)/N; broadcast P for each child in a binomial tree; send P.
///
/// MPI starts with the first group and must do so on all ranks of the mpirun: the world group does. It ends with the
/// last group (World::close), unless an operation was given up or a rank failed; then the process must end without
/// MPI_Finalize, which would wait for ever, and mpirun ends the others. An operation that was given up may still write
/// to its tensor, whose memory is therefore kept until the process ends. Errors: InputError when this process is not a
/// rank of such an mpirun; Trouble when a member does not come in time.
std::shared_ptr<Backend> connect_mpi(const GroupSetup& setup);

/// This process was started by mpirun and the module for it loads.
bool mpi_available();

} // namespace trireme::comm
