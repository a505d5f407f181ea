#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace trireme::tools {

/// How long f() takes.
template <class F>
double milliseconds(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// Arguments of `trireme bench optim`: every number of parameters with every number of threads.
struct BenchOptimArgs {
  std::vector<int64_t> params = {50'000'000};
  /// Empty: libtorch's default.
  std::vector<int> threads;
  /// Rows to measure; empty: all.
  std::vector<std::string> impls;
  /// Timed repeats of each row, after two for warm-up.
  int repeats = 15;
  /// One JSON object per line instead of a table.
  bool json = false;
  /// Requests huge pages for the arrays.
  bool huge_pages = true;
};

/// Times optimizer steps and, alternating with each, the least work that reads four fp32 arrays and writes three (row
/// `limit`):
///
///   adam                 AdamW in fp32; 28 bytes of memory traffic per parameter
///   adam_bf16            mixed precision: bf16 gradient in, its norm, unscaled and clipped, fp32 master, bf16
///                        parameters out; 30 bytes
///   adam_bf16_states16   the same with bf16 states; 22 bytes
///   adam_bf16_states8    the same with 8-bit states; 18 bytes
///   lamb, lion, adagrad, rmsprop, sgd (with momentum)   in fp32; 40 bytes for LAMB, 20 for the others
///
/// Writes to `out`, per row: impl, params, threads, bytes (per parameter), ms (median), ms_min, gb_per_s (these bytes
/// over ms), and `of_limit`, the median over the pairs of the time at the limit's bandwidth / own time. Returns the
/// exit status. Needs 34 bytes of memory per parameter. Errors: InputError for a number below 1 or an unknown row.
int bench_optim(const BenchOptimArgs& args, std::ostream& out);

} // namespace trireme::tools
