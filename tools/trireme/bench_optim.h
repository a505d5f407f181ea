#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

namespace trireme::tools {

/// What `trireme bench optim` measures: every number of parameters with every number of threads.
struct BenchOptimArgs {
  std::vector<int64_t> params = {50'000'000};
  /// Empty: as many as libtorch uses.
  std::vector<int> threads;
  /// Timed repeats of each row, after two that warm up.
  int repeats = 15;
  /// One JSON object a line instead of a table.
  bool json = false;
  /// Ask the kernel for huge pages under the arrays.
  bool huge_pages = true;
};

/// Times AdamW in fp32 (row `adam`) and, alternating with it over the same arrays, the least work
/// with the same memory traffic (row `limit`: read four arrays, write three). Writes to `out`, per
/// row: impl, params, threads, ms (median), ms_min, gb_per_s (28 bytes a parameter over ms), and
/// `of_limit`, the median over the pairs of limit time / own time. Returns the exit status.
/// Needs 16 bytes of memory a parameter. Errors: InputError for a number below 1.
int bench_optim(const BenchOptimArgs& args, std::ostream& out);

} // namespace trireme::tools
