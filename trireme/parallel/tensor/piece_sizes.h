#pragma once

#include <cstdint>

namespace trireme::tensor {

/// From so many bytes on a sample of a sequence travels by itself: what a rank has of it lies together, so that nothing
/// is copied into another order.
inline constexpr int64_t kSampleBytes = 1 << 20;
/// What of a larger result travels while the next is computed.
inline constexpr int64_t kPieceBytes = 8 << 20;

} // namespace trireme::tensor
