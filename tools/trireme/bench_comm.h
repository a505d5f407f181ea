#pragma once

#include "commands.h"

#include <iosfwd>

namespace trireme::tools {

/// Times one operation as one rank of a job, for every size and algorithm, and writes rows from rank 0. Fields:
/// backend, algorithm, ranks, bytes (of the full tensor), us_min, gb_per_s (bytes over us), of_limit, us (median over
/// the repeats of the slowest rank's mean).
///
/// The limit is the time for all ranks to copy, at the same time, half of the bytes that a rank must read and write if
/// no work is done twice. Copies are plain or streaming, whichever is faster. P bytes, N ranks: all_reduce, all_to_all
/// and send copy P per rank (all tensors are read once and written once), reduce_scatter (P + P/N)/2, all_gather and
/// broadcast P(N-1)/N, a barrier nothing. Everything of one size is measured in turns in the same run; the first of
/// `command.backends` prints the limit as a row `memcpy`.
///
/// An algorithm other than `backend` (all_reduce over messages, see comm/algorithms/) has more fields, of the busiest
/// rank: steps and bytes_sent as counted, steps_formula and bytes_formula by its closed form, messages. Returns the
/// exit status.
int bench_comm(const BenchCommCommand& command, std::ostream& out);

} // namespace trireme::tools
