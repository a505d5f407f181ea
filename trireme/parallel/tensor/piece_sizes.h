#pragma once

#include <cstdint>

namespace trireme::tensor {

/// A sample of a sequence of at least this many bytes is sent alone: a rank's part of it is contiguous, so nothing is
/// reordered by a copy.
inline constexpr int64_t kSampleBytes = 1 << 20;
/// Bytes of a larger result that are sent while the next piece is computed.
inline constexpr int64_t kPieceBytes = 8 << 20;

} // namespace trireme::tensor
