#pragma once

#include <cstdint>

namespace trireme::tensor {

/// Sizes in which split layers exchange.
struct PieceSizes {
  /// A sample of a sequence of at least this many bytes is sent alone: a rank's part of it is contiguous, so nothing is
  /// reordered by a copy.
  int64_t sample_bytes = 0;
  /// Bytes of a larger result that are sent while the next piece is computed.
  int64_t piece_bytes = 0;
};

/// On the host pieces fit into caches. On a GPU each costs launches and NCCL's start, about 20 us, in which NVLink
/// moves 9 MB (450 GB/s) and a copy that reorders 40 MB: pieces are larger, and fewer samples are alone. Measured on
/// the CPU only.
constexpr PieceSizes piece_sizes(bool on_host) {
  return on_host ? PieceSizes{1 << 20, 8 << 20} : PieceSizes{16 << 20, 32 << 20};
}

} // namespace trireme::tensor
