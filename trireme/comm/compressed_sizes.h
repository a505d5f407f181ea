#pragma once

#include <cmath>
#include <cstdint>

/// Sizes of compressed messages, computed from numbers alone; no torch.
namespace trireme::comm {

/// Elements of the longest stretch, about a row of a matrix: the elements of a row are more often of one size than
/// those of the matrix.
inline constexpr int64_t kLongestStretch = 2048;
/// Elements that share a scale of 8-bit codes.
inline constexpr int64_t kScaledElements = 256;
/// Ranges of ranks are multiples of kRangeElements elements, as the shards of a bucket. Messages begin at multiples of
/// kMessageBytes bytes.
inline constexpr int64_t kRangeElements = 16;
inline constexpr int64_t kMessageBytes = 16;
/// Bytes of a number in a message (a scale, a value, an element of a factor), and of a value's position in its stretch.
inline constexpr int64_t kNumberBytes = 4;
inline constexpr int64_t kPlaceBytes = 2;

constexpr int64_t whole_multiple(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}
/// Number of elements in each rank's range, except for the last ranges.
constexpr int64_t range_elements(int64_t elements, int64_t ranks) {
  return whole_multiple((elements + ranks - 1) / ranks, kRangeElements);
}

/// Sizes for one stretch: bytes of its signs, scales of its 8-bit codes, and elements that top-k sends.
constexpr int64_t sign_bytes(int64_t elements) {
  return (elements + 7) / 8;
}
constexpr int64_t scales_of(int64_t elements) {
  return (elements + kScaledElements - 1) / kScaledElements;
}
inline int64_t largest_of(int64_t elements, double share) {
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(elements)));
}

/// True if PowerSGD sends a matrix as two factors with `rank` columns, because they have fewer numbers.
constexpr bool has_factors(int64_t rank, int64_t rows, int64_t columns) {
  return rank * (rows + columns) < rows * columns;
}

} // namespace trireme::comm
