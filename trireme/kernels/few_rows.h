#pragma once

#include <trireme/kernels/fused_rows.h>

// Products of a few rows with a matrix in memory, which is read once and in order: with two outputs at a time it
// arrives half as fast. Included by each fused_<simd>.cpp.

namespace trireme::kernels {
namespace {

/// Rows whose sums stay in registers.
constexpr int kFewRows = Wide::kParts == 1 ? 12 : 6;
/// Bytes that are asked for ahead. For one row the processor itself looks far enough ahead.
constexpr int64_t kAhead = 4096;

inline void put(float x, float* p) {
  *p = x;
}
inline void put(float x, Bf16* p) {
  *p = rounded(x);
}

/// y[row + r][output] for r < kRows.
template <int kRows, class T>
inline void few_rows_tile(const FewRowsArgs& args, int64_t row, int64_t output) {
  const T* const weight = static_cast<const T*>(args.weight) + output * args.columns;
  const float* const x = args.x + row * args.columns;
  Wide sums[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    sums[r] = Wide::zero();
  }
  each(args.columns, [&](int64_t k, const auto& at) {
    const Wide w = at.load(weight + k);
    if constexpr (kRows > 1) {
      __builtin_prefetch(reinterpret_cast<const char*>(weight + k) + kAhead);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sums[r] = fma(w, at.load(x + r * args.columns + k), sums[r]);
    }
  });
  const float bias = args.bias != nullptr ? args.bias[output] : 0;
  T* const y = static_cast<T*>(args.y) + row * args.outputs + output;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    put(sum(sums[r]) + bias, y + r * args.outputs);
  }
}

/// All rows from `row` on, kRows at a time.
template <int kRows, class T>
inline void few_rows_output(const FewRowsArgs& args, int64_t row, int64_t output) {
  for (; row + kRows <= args.rows; row += kRows) {
    few_rows_tile<kRows, T>(args, row, output);
  }
  if constexpr (kRows > 1) {
    if (row < args.rows) {
      few_rows_output<kRows - 1, T>(args, row, output);
    }
  }
}

void few_rows(const FewRowsArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    for (int64_t output = begin; output < end; ++output) {
      few_rows_output<kFewRows, decltype(t)>(args, 0, output);
    }
  });
}

} // namespace
} // namespace trireme::kernels
