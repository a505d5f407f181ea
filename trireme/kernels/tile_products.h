#pragma once

#include <trireme/kernels/wide.h>

// Products of matrices in tiles of a few rows, whose sums stay in registers, and their operands in fp32; for
// attention_loops.h.

namespace trireme::kernels {
namespace {

/// Columns of a panel of transposed keys or values.
constexpr int64_t kPanel = 64;
constexpr int kTileRows = 6;
// 24 sums and their operands fill 32 registers of 16 floats; 12 sums of two halves fill 16 registers of 8.
constexpr int kTileWides = Wide::kParts == 1 ? 4 : 1;

constexpr int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// c[m][n] = (or +=) sum over k of a[m * am + k * ak] * b[k * ldb + n], for m < kRows and n < 16 kWides, k ascending.
template <int kRows, int kWides, bool kAdd>
inline void multiply_tile(const float* a, int64_t am, int64_t ak, const float* b, int64_t ldb, int64_t depth, float* c,
                          int64_t ldc) {
  Wide sums[kRows][kWides];
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kWides; ++n) {
      sums[m][n] = kAdd ? Wide::load(c + m * ldc + n * Wide::kCount) : Wide::zero();
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Wide columns[kWides];
#pragma GCC unroll 4
    for (int n = 0; n < kWides; ++n) {
      columns[n] = Wide::load(b + k * ldb + n * Wide::kCount);
    }
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m) {
      const Wide factor = Wide::all(a[m * am + k * ak]);
#pragma GCC unroll 4
      for (int n = 0; n < kWides; ++n) {
        sums[m][n] = fma(factor, columns[n], sums[m][n]);
      }
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kWides; ++n) {
      sums[m][n].store(c + m * ldc + n * Wide::kCount);
    }
  }
}

template <int kWides, bool kAdd>
inline void multiply_rows(int rows, const float* a, int64_t am, int64_t ak, const float* b, int64_t ldb, int64_t depth,
                          float* c, int64_t ldc) {
  switch (rows) {
    case 6:
      return multiply_tile<6, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 5:
      return multiply_tile<5, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 4:
      return multiply_tile<4, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 3:
      return multiply_tile<3, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    case 2:
      return multiply_tile<2, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
    default:
      return multiply_tile<1, kWides, kAdd>(a, am, ak, b, ldb, depth, c, ldc);
  }
}

/// Up to kTileRows rows by `columns`, a multiple of 16.
template <bool kAdd>
void multiply(int rows, int64_t columns, int64_t depth, const float* a, int64_t am, int64_t ak, const float* b,
              int64_t ldb, float* c, int64_t ldc) {
  int64_t n = 0;
  for (; n + kTileWides * Wide::kCount <= columns; n += kTileWides * Wide::kCount) {
    multiply_rows<kTileWides, kAdd>(rows, a, am, ak, b + n, ldb, depth, c + n, ldc);
  }
  if constexpr (kTileWides > 1) {
    for (; n < columns; n += Wide::kCount) {
      multiply_rows<1, kAdd>(rows, a, am, ak, b + n, ldb, depth, c + n, ldc);
    }
  }
}

/// to[r][c] = (from[r][c] + bias[c]) * scale as fp32, zeros up to `width`.
template <class T>
inline void widen(const T* from, int64_t stride, const float* bias, float scale, int64_t rows, int64_t columns,
                  float* to, int64_t width) {
  const Wide factor = Wide::all(scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += Wide::kCount) {
      const int n = static_cast<int>(columns - c < Wide::kCount ? columns - c : Wide::kCount);
      Wide x = n == Wide::kCount ? Wide::load(from + r * stride + c) : Wide::load(from + r * stride + c, n);
      if (bias != nullptr) {
        x = x + (n == Wide::kCount ? Wide::load(bias + c) : Wide::load(bias + c, n));
      }
      (x * factor).store(to + r * width + c);
    }
  }
}

/// to[r][c] = from[r][c] * scale, rounded to T.
template <class T>
inline void narrow(const float* from, int64_t width, float scale, int64_t rows, int64_t columns, T* to,
                   int64_t stride) {
  const Wide factor = Wide::all(scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += Wide::kCount) {
      const Wide x = Wide::load(from + r * width + c) * factor;
      if (columns - c < Wide::kCount) {
        x.store(to + r * stride + c, static_cast<int>(columns - c));
      } else {
        x.store(to + r * stride + c);
      }
    }
  }
}

/// panels[p][c][i] = from[p * kPanel + i][c], zeros behind the last row.
inline void transpose_panels(const float* from, int64_t width, int64_t rows, int64_t columns, float* panels) {
  for (int64_t first = 0; first < rows; first += kPanel) {
    float* panel = panels + first * columns;
    const int64_t here = rows - first < kPanel ? rows - first : kPanel;
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t i = 0; i < here; ++i) {
        panel[c * kPanel + i] = from[(first + i) * width + c];
      }
      for (int64_t i = here; i < kPanel; ++i) {
        panel[c * kPanel + i] = 0;
      }
    }
  }
}

} // namespace
} // namespace trireme::kernels
