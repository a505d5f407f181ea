#pragma once

#include "commands.h"

#include <iosfwd>

namespace trireme::tools {

/// Times one operation as one rank of a job, for every size, and writes rows from rank 0: backend, ranks, bytes, us (median over the
/// repeats of the mean over the ranks' slowest), us_min, gb_per_s. With the backend shm there is a second row
/// `memcpy` for each size: all ranks at once copy, by themselves, as many bytes as the operation makes each rank read and write at
/// least, past the caches where that is faster. Returns the exit status.
int bench_comm(const BenchCommCommand& command, std::ostream& out);

} // namespace trireme::tools
