#pragma once

#include <cmath>
#include <cstdint>

/// What follows of compressed messages from numbers alone; no torch.
namespace trireme::comm {

/// Elements of the longest stretch: about a row of a matrix, whose elements are of one size more often than those of
/// the whole matrix.
inline constexpr int64_t kLongestStretch = 2048;
/// Elements that share a scale of 8-bit codes.
inline constexpr int64_t kScaledElements = 256;
/// Ranges of ranks are multiples of so many elements, as the shards of a bucket are; messages lie at multiples of so
/// many bytes.
inline constexpr int64_t kRangeElements = 16;
inline constexpr int64_t kMessageBytes = 16;
/// A number of a message: a scale, a value, an element of a factor. And the place of a value in its stretch.
inline constexpr int64_t kNumberBytes = 4;
inline constexpr int64_t kPlaceBytes = 2;

constexpr int64_t whole_multiple(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}
/// Elements of each rank's range, but for the last ones.
constexpr int64_t range_elements(int64_t elements, int64_t ranks) {
  return whole_multiple((elements + ranks - 1) / ranks, kRangeElements);
}

/// Of a stretch: bytes of its signs, scales of its 8-bit codes, and the largest elements that top-k sends.
constexpr int64_t sign_bytes(int64_t elements) {
  return (elements + 7) / 8;
}
constexpr int64_t scales_of(int64_t elements) {
  return (elements + kScaledElements - 1) / kScaledElements;
}
inline int64_t largest_of(int64_t elements, double share) {
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(elements)));
}

/// Whether PowerSGD sends a matrix as two factors with so many columns: where they are fewer numbers.
constexpr bool has_factors(int64_t rank, int64_t rows, int64_t columns) {
  return rank * (rows + columns) < rows * columns;
}

} // namespace trireme::comm
