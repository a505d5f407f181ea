#pragma once

#include "commands.h"

#include <iosfwd>

namespace trireme::tools {

/// Times one operation as one rank of a job, for every size and algorithm, and writes rows from rank 0: backend,
/// algorithm, ranks, bytes (of the whole tensor), us (median over the repeats of the slowest rank's mean), us_min,
/// gb_per_s (bytes over us), of_limit.
///
/// The limit is the time in which all ranks at once copy, each for itself, half of the bytes that a rank has to read
/// and write if nobody's work is done twice; plainly or past the caches, whichever is faster. P bytes, N ranks:
/// all_reduce, all_to_all and send copy P a rank (all tensors together are read once and written once), reduce_scatter
/// (P + P/N)/2, all_gather and broadcast P(N-1)/N, a barrier nothing. Everything of one size is measured in turns in
/// the same run; the first of `command.backends` prints the limit as a row `memcpy`. An algorithm other than `backend`
/// (all_reduce over messages, see comm/algorithms/) has more fields, of the busiest rank: steps and bytes_sent as
/// counted, steps_formula and bytes_formula by its closed form, messages. Returns the exit status.
int bench_comm(const BenchCommCommand& command, std::ostream& out);

} // namespace trireme::tools
