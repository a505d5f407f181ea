#pragma once

#include "tests/support/run_ranks.h"

namespace trireme::test {

/// "openmpi" or "mpich": run_over_mpi() can start ranks with it.
bool is_mpi(const std::string& name);

/// Why tests over `mpi` cannot run here (not built, no mpirun of it), "" when they can.
std::string why_not_mpi(const std::string& mpi);

/// The command that starts `ranks` of `program` under that MPI, as root and with more ranks than cores too.
std::string mpirun(const std::string& mpi, int ranks, const std::string& program);

/// run_ranks() for ranks that mpirun starts: every rank is this test program again, running the current test alone,
/// where this call becomes the body. Nothing before it in the test may have side effects. Returns what the ranks
/// printed when one did not end well.
std::vector<std::string> run_over_mpi(const std::string& mpi, int world_size,
                                      const std::function<void(comm::World&)>& body, const RunOptions& options = {});

} // namespace trireme::test
