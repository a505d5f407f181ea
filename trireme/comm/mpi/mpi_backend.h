#pragma once

#include <trireme/comm/backends.h>

namespace trireme::comm {

/// Opens a group over the MPI whose mpirun started this process (Open MPI or MPICH), with a communicator of its own.
///
/// CPU tensors of float, double, half, bfloat16 and integers; any number of elements (calls of at most 2^30 each). Uses
/// MPI-3's nonblocking collectives. MPI progresses only while a thread waits for one of them, except for what the
/// network does itself: nothing overlaps computation. Sums of half and bfloat16 are added in float; all_reduce rounds
/// after every addition, reduce_scatter once (all_to_all into a temporary, added in rank order). Bytes sent, P bytes
/// and N ranks, by the usual algorithms (MPI chooses its own): all_reduce 2P(N-1)/N; reduce_scatter, all_gather and
/// all_to_all P(N-1)/N; broadcast P per child in a binomial tree; send P.
///
/// MPI starts with the first group, on all ranks of the mpirun at once: the world group does that. It ends with the
/// last group (World::close). After an operation was given up or a rank failed, the process must end without
/// MPI_Finalize, which would wait forever; mpirun then ends the others. An operation that was given up may still write
/// to its tensor, whose memory is kept until the process ends. Errors: InputError if this process is not a rank of such
/// an mpirun; Trouble if a member does not connect in time.
std::shared_ptr<Backend> connect_mpi(const GroupSetup& setup);

/// True if mpirun started this process and its module loads.
bool mpi_available();

} // namespace trireme::comm
