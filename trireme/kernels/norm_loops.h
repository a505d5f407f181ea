#pragma once

#include <trireme/kernels/pieces.h>

#include <cstdint>

namespace trireme::kernels {
namespace {

/// Sums of squares, element i in partial sum i mod kSums.
class SquaredSums {
 public:
  /// All calls but the last pass a multiple of kSums elements.
  void add(const float* x, int64_t n) {
    int64_t i = 0;
    for (; i + kSums <= n; i += kSums) {
      for (int r = 0; r < kRegisters; ++r) {
        registers_[r].add(x + i + r * SquareSum::kCount);
      }
    }
    for (int lane = 0; i + lane < n; ++lane) {
      const double value = x[i + lane];
      rest_[lane] = value * value;
    }
  }

  double total() const {
    double sums[kSums];
    for (int r = 0; r < kRegisters; ++r) {
      registers_[r].store(sums + r * SquareSum::kCount);
    }
    for (int lane = 0; lane < kSums; ++lane) {
      sums[lane] += rest_[lane];
    }
    for (int half = kSums / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) {
        sums[lane] += sums[lane + half];
      }
    }
    return sums[0];
  }

 private:
  static constexpr int kSums = 32;
  static constexpr int kRegisters = kSums / SquareSum::kCount;
  SquareSum registers_[kRegisters];
  double rest_[kSums] = {};
};

double squared_norm(const void* x, Element type, int64_t n) {
  SquaredSums sums;
  if (type == Element::f32) {
    sums.add(static_cast<const float*>(x), n);
    return sums.total();
  }
  alignas(64) float room[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = n - i < kPiece ? n - i : kPiece;
    sums.add(floats_of(x, type, i, count, room), count);
  }
  return sums.total();
}

} // namespace
} // namespace trireme::kernels
