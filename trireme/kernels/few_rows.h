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

template <int kRows>
inline void clear(Wide* sums) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    sums[r] = Wide::zero();
  }
}

/// A row of the weight times kRows rows of x, added to their sums.
template <int kRows, class T>
inline void add_products(const T* weight, const float* x, int64_t x_stride, int64_t columns, Wide* sums) {
  each(columns, [&](int64_t k, const auto& at) {
    const Wide w = at.load(weight + k);
    if constexpr (kRows > 1) {
      __builtin_prefetch(reinterpret_cast<const char*>(weight + k) + kAhead);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sums[r] = fma(w, at.load(x + r * x_stride + k), sums[r]);
    }
  });
}

template <int kRows, class T>
struct WeightRow {
  static void add(const FewRowsArgs& args, int64_t output, const float* x, Wide* sums) {
    add_products<kRows>(static_cast<const T*>(args.weight) + output * args.columns, x, args.columns, args.columns,
                        sums);
  }
};

template <int kRows>
struct WeightRow<kRows, int8_t> {
  static void add(const FewRowsArgs& args, int64_t output, const float* x, Wide* sums) {
    const int64_t groups = (args.columns + kInt8Group - 1) / kInt8Group;
    const int64_t bytes = groups * static_cast<int64_t>(sizeof(float)) + args.columns;
    const int8_t* const scales = static_cast<const int8_t*>(args.weight) + output * bytes;
    const int8_t* const values = scales + groups * static_cast<int64_t>(sizeof(float));
    int64_t begin = 0;
    for (; begin + kInt8Group <= args.columns; begin += kInt8Group) {
      add_group(args, scales, values, x, begin, kInt8Group, sums);
    }
    if (begin < args.columns) {
      add_group(args, scales, values, x, begin, args.columns - begin, sums);
    }
  }

 private:
  /// Inlined, so that full groups are loops of constant length.
  [[gnu::always_inline]] static void add_group(const FewRowsArgs& args, const int8_t* scales, const int8_t* values,
                                               const float* x, int64_t begin, int64_t columns, Wide* sums) {
    float scale;
    std::memcpy(&scale, scales + begin / kInt8Group * static_cast<int64_t>(sizeof(float)), sizeof(float));
    Wide products[kRows];
    clear<kRows>(products);
    add_products<kRows>(values + begin, x + begin, args.columns, columns, products);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sums[r] = fma(products[r], Wide::all(scale), sums[r]);
    }
  }
};

inline void put(const FewRowsArgs& args, int64_t place, float y) {
  if (args.result == Element::bf16) {
    static_cast<Bf16*>(args.y)[place] = rounded(y);
  } else {
    static_cast<float*>(args.y)[place] = y;
  }
}

/// y[row + r][output] for r < kRows.
template <int kRows, class T>
inline void few_rows_tile(const FewRowsArgs& args, int64_t row, int64_t output) {
  Wide sums[kRows];
  clear<kRows>(sums);
  WeightRow<kRows, T>::add(args, output, args.x + row * args.columns, sums);
  const float bias = args.bias != nullptr ? args.bias[output] : 0;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    put(args, (row + r) * args.outputs + output, sum(sums[r]) + bias);
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

template <class T>
void few_rows_of(const FewRowsArgs& args, int64_t begin, int64_t end) {
  for (int64_t output = begin; output < end; ++output) {
    few_rows_output<kFewRows, T>(args, 0, output);
  }
}

void few_rows(const FewRowsArgs& args, int64_t begin, int64_t end) {
  if (args.element == Element::i8) {
    few_rows_of<int8_t>(args, begin, end);
  } else {
    with_element(args.element, [&](auto t) { few_rows_of<decltype(t)>(args, begin, end); });
  }
}

} // namespace
} // namespace trireme::kernels
