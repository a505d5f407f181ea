#pragma once

#include <algorithm>
#include <cstdint>

// How many logits of a loss exist at a time (linear_cross_entropy.h). No torch: the estimate of memory asks too.

namespace trireme::fused {

/// Logits of more bytes are computed in chunks of rows, each of at most as many bytes.
inline constexpr int64_t kLogitChunkBytes = int64_t{256} << 20;
/// A GPU's products are fastest where rows begin at multiples of 16 bytes and tiles are full: widths of a multiple of
/// this.
inline constexpr int64_t kLogitPadding = 128;

/// Rows of a chunk of `rows` rows of `row_bytes`: all, or chunks of nearly equal size, of multiples of 64 rows where so
/// many fit.
constexpr int64_t logit_chunk_rows(int64_t rows, int64_t row_bytes, int64_t most_bytes = kLogitChunkBytes) {
  const int64_t fit = std::max<int64_t>(1, most_bytes / std::max<int64_t>(1, row_bytes));
  if (rows <= fit) {
    return rows;
  }
  const int64_t chunks = (rows + fit - 1) / fit;
  const int64_t even = (rows + chunks - 1) / chunks;
  return fit < 64 ? even : std::min((even + 63) / 64 * 64, fit / 64 * 64);
}

} // namespace trireme::fused
