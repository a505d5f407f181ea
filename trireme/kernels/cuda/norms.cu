#include <trireme/kernels/cuda/fused_cuda_kernels.h>
#include <trireme/kernels/cuda/row_blocks.cuh>

namespace trireme::kernels::cuda {
namespace {

/// x + bias + residual as stored, for the columns from `column` on of a row. Without a residual x itself.
template <int kWidth, class T, class P>
__device__ inline Pack<kWidth> added(const T* x, const T* residual, const P* bias, int64_t column) {
  Pack<kWidth> h = Pack<kWidth>::load(x + column);
  if (residual == nullptr) {
    return h;
  }
  if (bias != nullptr) {
    const Pack<kWidth> more = Pack<kWidth>::load(bias + column);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      h.x[i] += more.x[i];
    }
  }
  const Pack<kWidth> more = Pack<kWidth>::load(residual + column);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    h.x[i] += more.x[i];
  }
  return h.template rounded<T>();
}

template <class T>
__device__ inline const T* row_of(const void* array, int64_t row, int64_t columns) {
  return array != nullptr ? static_cast<const T*>(array) + row * columns : nullptr;
}
template <class T>
__device__ inline T* row_of(void* array, int64_t row, int64_t columns) {
  return static_cast<T*>(array) + row * columns;
}

template <class T, class P, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMostThreads) layer_norm_kernel(const LayerNormArgs args, int64_t rows) {
  __shared__ float room[kMostWarps];
  const int64_t n = args.columns;
  const float share = 1.0F / static_cast<float>(n);
  const auto *const weight_of = static_cast<const P*>(args.weight), *const shift_of = static_cast<const P*>(args.shift),
                    *const bias_of = static_cast<const P*>(args.bias);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = row_of<T>(args.x, row, n);
    const T* const residual = row_of<T>(args.residual, row, n);
    const auto h_of = [&](int64_t j) { return added<kWidth>(x, residual, bias_of, j); };
    float total = 0;
    each_pack<kHeld, kWidth>(n, [&](int, int64_t j) {
      const Pack<kWidth> h = h_of(j);
      if (residual != nullptr) {
        h.store(row_of<T>(args.h, row, n) + j);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        total += h.x[i];
      }
    });
    const float mean = over_block<Sum>(total, room) * share;
    float squares = 0;
    each_pack<kHeld, kWidth>(n, [&](int, int64_t j) {
      const Pack<kWidth> h = h_of(j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        squares = fmaf(h.x[i] - mean, h.x[i] - mean, squares);
      }
    });
    const float rstd = 1.0F / sqrtf(over_block<Sum>(squares, room) * share + args.eps);
    T* const y = row_of<T>(args.y, row, n);
    each_pack<kHeld, kWidth>(n, [&](int, int64_t j) {
      Pack<kWidth> h = h_of(j);
      const Pack<kWidth> weight = Pack<kWidth>::load(weight_of + j), shift = Pack<kWidth>::load(shift_of + j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        h.x[i] = fmaf((h.x[i] - mean) * rstd, weight.x[i], shift.x[i]);
      }
      h.store(y + j);
    });
    if (threadIdx.x == 0) {
      args.mean[row] = mean;
      args.rstd[row] = rstd;
    }
  }
}

/// Partial sums of the rows of each block: of dweight, dshift and dbias where they are wanted.
struct NormPartials {
  float *dweight, *dshift, *dbias;
};

template <class T, class P, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMostThreads)
    layer_norm_backward_kernel(const LayerNormArgs args, int64_t rows, const NormPartials partials) {
  __shared__ float room[kMostWarps];
  const int64_t n = args.columns;
  const float share = 1.0F / static_cast<float>(n);
  const auto* const weight_of = static_cast<const P*>(args.weight);
  ColumnSums<kHeld, kWidth> dweight(partials.dweight, n), dshift(partials.dshift, n), dbias(partials.dbias, n);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const h = row_of<T>(args.h, row, n);
    const T* const dy = row_of<T>(args.dy, row, n);
    const T* const dh_in = row_of<T>(args.dh_in, row, n);
    const float mean = args.mean[row], rstd = args.rstd[row];
    float sum_g = 0, sum_gx = 0;
    each_pack<kHeld, kWidth>(n, [&](int k, int64_t j) {
      const Pack<kWidth> d = Pack<kWidth>::load(dy + j), weight = Pack<kWidth>::load(weight_of + j);
      Pack<kWidth> normal = Pack<kWidth>::load(h + j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        normal.x[i] = (normal.x[i] - mean) * rstd;
        sum_g = fmaf(d.x[i], weight.x[i], sum_g);
        sum_gx = fmaf(d.x[i] * weight.x[i], normal.x[i], sum_gx);
        normal.x[i] *= d.x[i];
      }
      dweight.add(k, j, normal);
      dshift.add(k, j, d);
    });
    const float mean_g = over_block<Sum>(sum_g, room) * share;
    const float mean_gx = over_block<Sum>(sum_gx, room) * share;
    T* const dh = row_of<T>(args.dh, row, n);
    each_pack<kHeld, kWidth>(n, [&](int k, int64_t j) {
      const Pack<kWidth> dy_j = Pack<kWidth>::load(dy + j), weight = Pack<kWidth>::load(weight_of + j),
                         h_j = Pack<kWidth>::load(h + j);
      Pack<kWidth> d;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float normal = (h_j.x[i] - mean) * rstd;
        d.x[i] = rstd * fmaf(-normal, mean_gx, dy_j.x[i] * weight.x[i] - mean_g);
      }
      if (dh_in != nullptr) {
        const Pack<kWidth> more = Pack<kWidth>::load(dh_in + j);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          d.x[i] += more.x[i];
        }
      }
      d.store(dh + j);
      dbias.add(k, j, d);
    });
  }
  dweight.finish();
  dshift.finish();
  dbias.finish();
}

template <class T, class P, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMostThreads) rms_norm_kernel(const RmsNormArgs args, int64_t rows) {
  __shared__ float room[kMostWarps];
  const int64_t n = args.columns;
  const float share = 1.0F / static_cast<float>(n);
  const auto* const weight_of = static_cast<const P*>(args.weight);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = row_of<T>(args.x, row, n);
    const T* const residual = row_of<T>(args.residual, row, n);
    const auto h_of = [&](int64_t j) { return added<kWidth>(x, residual, static_cast<const P*>(nullptr), j); };
    float squares = 0;
    each_pack<kHeld, kWidth>(n, [&](int, int64_t j) {
      const Pack<kWidth> h = h_of(j);
      if (residual != nullptr) {
        h.store(row_of<T>(args.h, row, n) + j);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        squares = fmaf(h.x[i], h.x[i], squares);
      }
    });
    const float rstd = 1.0F / sqrtf(over_block<Sum>(squares, room) * share + args.eps);
    T* const y = row_of<T>(args.y, row, n);
    each_pack<kHeld, kWidth>(n, [&](int, int64_t j) {
      Pack<kWidth> h = h_of(j);
      const Pack<kWidth> weight = Pack<kWidth>::load(weight_of + j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        h.x[i] *= rstd;
      }
      h = h.template rounded<T>(); // before the weight
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        h.x[i] *= weight.x[i];
      }
      h.store(y + j);
    });
    if (threadIdx.x == 0) {
      args.rstd[row] = rstd;
    }
  }
}

template <class T, class P, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_backward_kernel(const RmsNormArgs args, int64_t rows, float* partials) {
  __shared__ float room[kMostWarps];
  const int64_t n = args.columns;
  const float share = 1.0F / static_cast<float>(n);
  const auto* const weight_of = static_cast<const P*>(args.weight);
  ColumnSums<kHeld, kWidth> dweight(partials, n);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const h = row_of<T>(static_cast<const void*>(args.h), row, n);
    const T* const dy = row_of<T>(args.dy, row, n);
    const T* const dh_in = row_of<T>(args.dh_in, row, n);
    const float rstd = args.rstd[row];
    float sum_gx = 0;
    each_pack<kHeld, kWidth>(n, [&](int k, int64_t j) {
      const Pack<kWidth> d = Pack<kWidth>::load(dy + j), weight = Pack<kWidth>::load(weight_of + j);
      Pack<kWidth> normal = Pack<kWidth>::load(h + j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        normal.x[i] *= rstd;
        sum_gx = fmaf(d.x[i] * weight.x[i], normal.x[i], sum_gx);
        normal.x[i] *= d.x[i];
      }
      dweight.add(k, j, normal);
    });
    const float mean_gx = over_block<Sum>(sum_gx, room) * share;
    T* const dh = row_of<T>(args.dh, row, n);
    each_pack<kHeld, kWidth>(n, [&](int, int64_t j) {
      const Pack<kWidth> dy_j = Pack<kWidth>::load(dy + j), weight = Pack<kWidth>::load(weight_of + j),
                         h_j = Pack<kWidth>::load(h + j);
      Pack<kWidth> d;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        d.x[i] = rstd * fmaf(-h_j.x[i] * rstd, mean_gx, dy_j.x[i] * weight.x[i]);
      }
      if (dh_in != nullptr) {
        const Pack<kWidth> more = Pack<kWidth>::load(dh_in + j);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          d.x[i] += more.x[i];
        }
      }
      d.store(dh + j);
    });
  }
  dweight.finish();
}

bool has_rows(int64_t rows, int64_t columns) {
  return rows > 0 && columns > 0;
}

} // namespace

int64_t column_partials(int64_t columns, int sums) {
  return kSumBlocks * columns * sums;
}

void layer_norm(const LayerNormArgs& args, int64_t rows, void* stream) {
  if (!has_rows(rows, args.columns)) {
    return;
  }
  const bool wide = aligned(args.x, args.residual, args.bias, args.h, args.y, args.weight, args.shift);
  with_rows<2>(args.element, wide, args.columns, [&](auto type, auto width, auto held, unsigned threads) {
    with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
      TRIREME_LAUNCH(
          (layer_norm_kernel<decltype(type), decltype(parameter), decltype(width)::value, decltype(held)::value>),
          row_blocks(rows), threads, static_cast<cudaStream_t>(stream))
      (args, rows);
    });
  });
  check_launch("layer_norm");
}

void layer_norm_backward(const LayerNormArgs& args, int64_t rows, float* partials, void* stream) {
  if (!has_rows(rows, args.columns)) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  const unsigned blocks = sum_blocks(rows);
  const int64_t one = blocks * args.columns;
  const NormPartials sums{args.dweight != nullptr ? partials : nullptr,
                          args.dshift != nullptr ? partials + one : nullptr,
                          args.dbias != nullptr ? partials + 2 * one : nullptr};
  const bool wide = aligned(args.h, args.dy, args.dh_in, args.dh, args.weight, partials);
  with_rows<2>(args.element, wide, args.columns, [&](auto type, auto width, auto held, unsigned threads) {
    with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
      using P = decltype(parameter);
      TRIREME_LAUNCH((layer_norm_backward_kernel<decltype(type), P, decltype(width)::value, decltype(held)::value>),
                     blocks, threads, on)
      (args, rows, sums);
      add_partials<P>(partials, blocks, args.columns,
                      {{static_cast<P*>(args.dweight), static_cast<P*>(args.dshift), static_cast<P*>(args.dbias)}}, on);
    });
  });
  check_launch("layer_norm_backward");
}

void rms_norm(const RmsNormArgs& args, int64_t rows, void* stream) {
  if (!has_rows(rows, args.columns)) {
    return;
  }
  const bool wide = aligned(args.x, args.residual, args.h, args.y, args.weight);
  with_rows(args.element, wide, args.columns, [&](auto type, auto width, auto held, unsigned threads) {
    with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
      TRIREME_LAUNCH(
          (rms_norm_kernel<decltype(type), decltype(parameter), decltype(width)::value, decltype(held)::value>),
          row_blocks(rows), threads, static_cast<cudaStream_t>(stream))
      (args, rows);
    });
  });
  check_launch("rms_norm");
}

void rms_norm_backward(const RmsNormArgs& args, int64_t rows, float* partials, void* stream) {
  if (!has_rows(rows, args.columns)) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  const unsigned blocks = sum_blocks(rows);
  float* const sums = args.dweight != nullptr ? partials : nullptr;
  const bool wide = aligned(args.h, args.dy, args.dh_in, args.dh, args.weight, sums);
  with_rows(args.element, wide, args.columns, [&](auto type, auto width, auto held, unsigned threads) {
    with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
      using P = decltype(parameter);
      TRIREME_LAUNCH((rms_norm_backward_kernel<decltype(type), P, decltype(width)::value, decltype(held)::value>),
                     blocks, threads, on)
      (args, rows, sums);
      add_partials<P>(sums, blocks, args.columns, {{static_cast<P*>(args.dweight), nullptr, nullptr}}, on);
    });
  });
  check_launch("rms_norm_backward");
}

} // namespace trireme::kernels::cuda
