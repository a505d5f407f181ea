#pragma once

#include "commands.h"

#include <filesystem>

namespace trireme::tools {

/// Starts `rank_program` as one job after the other, for every number of ranks and every backend, with our launcher or,
/// for the backend "mpi", with mpirun; rank 0 of each prints the rows. Returns the first exit status other than 0.
/// Errors: InputError without mpirun, or for an algorithm with another operation than all_reduce.
int start_bench_comm(const BenchCommCommand& command, const std::filesystem::path& rank_program);

} // namespace trireme::tools
