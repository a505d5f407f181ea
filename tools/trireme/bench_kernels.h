#pragma once

#include <cstdint>
#include <iosfwd>

namespace trireme::tools {

/// Arguments of `trireme bench kernels`: the fused operations at the sizes of one micro-batch of a GPT.
struct BenchKernelsArgs {
  int64_t batch = 4;
  int64_t length = 256;
  int64_t hidden = 384;
  int64_t heads = 6;
  int64_t vocab = 8192;
  /// 0: libtorch's default.
  int threads = 0;
  /// Timed repeats of each row, after two for warm-up.
  int repeats = 15;
  /// One JSON object per line instead of a table.
  bool json = false;
};

/// Times each fused operation, forward and backward, in fp32 and bf16 against the ATen operations it replaces,
/// alternating in one run. Writes to `out`, per row: op, dtype, threads, fused_ms, aten_ms (medians) and `ratio`, the
/// median over the pairs of ATen's time / own time. Returns the exit status. Errors: InputError when heads do not
/// divide hidden.
int bench_kernels(const BenchKernelsArgs& args, std::ostream& out);

} // namespace trireme::tools
