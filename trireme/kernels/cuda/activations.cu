#include <trireme/kernels/cuda/fused_cuda_kernels.h>
#include <trireme/kernels/philox.h>
#include <trireme/kernels/cuda/row_blocks.cuh>

namespace trireme::kernels::cuda {
namespace {

constexpr int kElementThreads = 256;

__device__ inline float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

struct TanhGelu {
  // gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
  static constexpr float kScale = 2 * 0.797884561F;
  static constexpr float kCube = 2 * 0.797884561F * 0.044715F;

  static __device__ float value(float x) { return x * sigmoid(x * fmaf(x * x, kCube, kScale)); }
  static __device__ float derivative(float x) {
    const float s = sigmoid(x * fmaf(x * x, kCube, kScale));
    const float near = fmaxf(-30.0F, fminf(30.0F, x)); // past it s (1 - s) is 0: avoids 0 * infinity
    return fmaf(near * fmaf(near * near, 3 * kCube, kScale), s * (1 - s), s);
  }
};

struct ErfGelu {
  // gelu(x) = x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2
  static __device__ float distribution(float x) { return 0.5F * erfcf(-0.707106781F * x); }
  static __device__ float value(float x) { return x * distribution(x); }
  static __device__ float derivative(float x) { return fmaf(x * 0.398942280F, expf(-0.5F * x * x), distribution(x)); }
};

template <int kWidth, class P, class T>
__device__ inline Pack<kWidth> biased(const T* x, const void* any_bias, int64_t column) {
  const auto* const bias = static_cast<const P*>(any_bias);
  Pack<kWidth> sum = Pack<kWidth>::load(x + column);
  if (bias != nullptr) {
    const Pack<kWidth> more = Pack<kWidth>::load(bias + column);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum.x[i] += more.x[i];
    }
  }
  return sum;
}

template <class T, class P, int kWidth, int kHeld, class Form>
__global__ void __launch_bounds__(kMostThreads) gelu_kernel(const GeluArgs args, int64_t rows) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(args.x) + row * args.columns;
    T* const y = static_cast<T*>(args.y) + row * args.columns;
    each_pack<kHeld, kWidth>(args.columns, [&](int, int64_t j) {
      Pack<kWidth> v = biased<kWidth, P>(x, args.bias, j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        v.x[i] = Form::value(v.x[i]);
      }
      v.store(y + j);
    });
  }
}

template <class T, class P, int kWidth, int kHeld, class Form>
__global__ void __launch_bounds__(kMostThreads)
    gelu_backward_kernel(const GeluArgs args, int64_t rows, float* partials) {
  ColumnSums<kHeld, kWidth> dbias(partials, args.columns);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(args.x) + row * args.columns;
    const T* const dy = static_cast<const T*>(args.dy) + row * args.columns;
    T* const dx = static_cast<T*>(args.dx) + row * args.columns;
    each_pack<kHeld, kWidth>(args.columns, [&](int k, int64_t j) {
      const Pack<kWidth> v = biased<kWidth, P>(x, args.bias, j);
      Pack<kWidth> d = Pack<kWidth>::load(dy + j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        d.x[i] *= Form::derivative(v.x[i]);
      }
      d.store(dx + j);
      dbias.add(k, j, d);
    });
  }
  dbias.finish();
}

template <class T, class P, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMostThreads) add_bias_kernel(const AddBiasArgs args, int64_t rows) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(args.x) + row * args.columns;
    const T* const residual = static_cast<const T*>(args.residual) + row * args.columns;
    T* const out = static_cast<T*>(args.out) + row * args.columns;
    each_pack<kHeld, kWidth>(args.columns, [&](int, int64_t j) {
      Pack<kWidth> v = biased<kWidth, P>(x, args.bias, j);
      const Pack<kWidth> more = Pack<kWidth>::load(residual + j);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        v.x[i] += more.x[i];
      }
      v.store(out + j);
    });
  }
}

template <class T, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMostThreads)
    column_sum_kernel(const ColumnSumArgs args, int64_t rows, float* partials) {
  ColumnSums<kHeld, kWidth> sums(partials, args.columns);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(args.x) + row * args.columns;
    each_pack<kHeld, kWidth>(args.columns, [&](int k, int64_t j) { sums.add(k, j, Pack<kWidth>::load(x + j)); });
  }
  sums.finish();
}

/// Calls f(element) for the first elements of packs of kWidth; what is left at the end goes one by one to
/// rest(element).
template <int kWidth, class F, class G>
__device__ inline void each_element(int64_t n, const F& f, const G& rest) {
  const int64_t first = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * kWidth;
  const int64_t stride = gridDim.x * static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t at = first; at < n; at += stride) {
    if (at + kWidth <= n) {
      f(at);
    } else {
      for (int64_t i = at; i < n; ++i) {
        rest(i);
      }
    }
  }
}

template <class T, int kWidth>
__device__ inline void gated_silu_at(const GatedSiluArgs& args, int64_t at) {
  Pack<kWidth> y = Pack<kWidth>::load(static_cast<const T*>(args.gate) + at);
  const Pack<kWidth> up = Pack<kWidth>::load(static_cast<const T*>(args.up) + at);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    y.x[i] *= sigmoid(y.x[i]) * up.x[i];
  }
  y.store(static_cast<T*>(args.y) + at);
}

template <class T, int kWidth>
__global__ void gated_silu_kernel(const GatedSiluArgs args, int64_t n) {
  each_element<kWidth>(
      n, [&](int64_t at) { gated_silu_at<T, kWidth>(args, at); }, [&](int64_t at) { gated_silu_at<T, 1>(args, at); });
}

template <class T, int kWidth>
__device__ inline void gated_silu_backward_at(const GatedSiluArgs& args, int64_t at) {
  const Pack<kWidth> gate = Pack<kWidth>::load(static_cast<const T*>(args.gate) + at);
  const Pack<kWidth> up = Pack<kWidth>::load(static_cast<const T*>(args.up) + at);
  const Pack<kWidth> dy = Pack<kWidth>::load(static_cast<const T*>(args.dy) + at);
  Pack<kWidth> dgate, dup;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float x = gate.x[i], s = sigmoid(x);
    dgate.x[i] = dy.x[i] * up.x[i] * (s * fmaf(x, 1 - s, 1.0F));
    dup.x[i] = dy.x[i] * (x * s);
  }
  dgate.store(static_cast<T*>(args.dgate) + at);
  dup.store(static_cast<T*>(args.dup) + at);
}

template <class T, int kWidth>
__global__ void gated_silu_backward_kernel(const GatedSiluArgs args, int64_t n) {
  each_element<kWidth>(
      n, [&](int64_t at) { gated_silu_backward_at<T, kWidth>(args, at); },
      [&](int64_t at) { gated_silu_backward_at<T, 1>(args, at); });
}

/// The element's word of the four.
__device__ inline uint32_t word_of(const Words& words, int64_t at) {
  return at % 4 == 0 ? words.a : at % 4 == 1 ? words.b : at % 4 == 2 ? words.c : words.d;
}

/// A pack of 4 elements or more begins at a multiple of 4.
template <class T, int kWidth>
__device__ inline void dropout_at(const DropoutArgs& args, uint64_t seed, int64_t at) {
  Pack<kWidth> x = Pack<kWidth>::load(static_cast<const T*>(args.x) + at), residual = x;
  if (args.residual != nullptr) {
    residual = Pack<kWidth>::load(static_cast<const T*>(args.residual) + at);
  }
  Words words = {};
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (i % 4 == 0) {
      words = random_words(static_cast<uint64_t>(at + i) / 4, seed);
    }
    const float factor = word_of(words, kWidth == 1 ? at : i) < args.threshold ? 0.0F : args.scale;
    x.x[i] = args.residual != nullptr ? fmaf(x.x[i], factor, residual.x[i]) : x.x[i] * factor;
  }
  x.store(static_cast<T*>(args.y) + at);
}

template <class T, int kWidth>
__global__ void dropout_kernel(const DropoutArgs args, int64_t n) {
  const auto seed = static_cast<uint64_t>(*args.seed);
  each_element<kWidth>(
      n, [&](int64_t at) { dropout_at<T, kWidth>(args, seed, at); },
      [&](int64_t at) { dropout_at<T, 1>(args, seed, at); });
}

template <class T, int kWidth>
__global__ void rotary_kernel(const RotaryArgs args, int64_t rows) {
  const int64_t half = args.head_size / 2, packs = half / kWidth, count = rows * args.heads * packs;
  for (int64_t at = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; at < count;
       at += gridDim.x * static_cast<int64_t>(blockDim.x)) {
    const int64_t j = at % packs * kWidth, head = at / packs % args.heads, row = at / packs / args.heads;
    const int64_t sample = row / args.tokens, token = row % args.tokens;
    const T* const x =
        static_cast<const T*>(args.x) + sample * args.x_at.sample + head * args.x_at.head + token * args.x_at.row + j;
    T* const y =
        static_cast<T*>(args.y) + sample * args.y_at.sample + head * args.y_at.head + token * args.y_at.row + j;
    const Pack<kWidth> c = Pack<kWidth>::load(args.cos + token * half + j),
                       s = Pack<kWidth>::load(args.sin + token * half + j);
    Pack<kWidth> a = Pack<kWidth>::load(x), b = Pack<kWidth>::load(x + half);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float turn = s.x[i] * args.sign, old = a.x[i];
      a.x[i] = old * c.x[i] - b.x[i] * turn;
      b.x[i] = b.x[i] * c.x[i] + old * turn;
    }
    a.store(y);
    b.store(y + half);
  }
}

template <class F>
void with_form(Gelu form, const F& f) {
  form == Gelu::tanh ? f(TanhGelu()) : f(ErfGelu());
}

unsigned element_blocks(int64_t packs) {
  return row_blocks((packs + kElementThreads - 1) / kElementThreads);
}

/// Whether heads begin at multiples of 16 bytes and halves of them are whole packs.
bool wide_heads(const HeadStrides& at, int64_t half, int width) {
  return at.sample % width == 0 && at.head % width == 0 && at.row % width == 0 && half % width == 0;
}

} // namespace

void gelu(const GeluArgs& args, int64_t rows, void* stream) {
  if (rows <= 0 || args.columns <= 0) {
    return;
  }
  with_form(args.form, [&](auto form) {
    with_rows(args.element, aligned(args.x, args.bias, args.y), args.columns,
              [&](auto type, auto width, auto held, unsigned threads) {
                with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
                  TRIREME_LAUNCH((gelu_kernel<decltype(type), decltype(parameter), decltype(width)::value,
                                              decltype(held)::value, decltype(form)>),
                                 row_blocks(rows), threads, static_cast<cudaStream_t>(stream))
                  (args, rows);
                });
              });
  });
  check_launch("gelu");
}

void gelu_backward(const GeluArgs& args, int64_t rows, float* partials, void* stream) {
  if (rows <= 0 || args.columns <= 0) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  float* const sums = args.dbias != nullptr ? partials : nullptr;
  const unsigned blocks = sums != nullptr ? sum_blocks(rows) : row_blocks(rows);
  with_form(args.form, [&](auto form) {
    with_rows(args.element, aligned(args.x, args.bias, args.dy, args.dx, sums), args.columns,
              [&](auto type, auto width, auto held, unsigned threads) {
                with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
                  using P = decltype(parameter);
                  TRIREME_LAUNCH((gelu_backward_kernel<decltype(type), P, decltype(width)::value, decltype(held)::value,
                                                       decltype(form)>),
                                 blocks, threads, on)
                  (args, rows, sums);
                  add_partials<P>(sums, blocks, args.columns, {{static_cast<P*>(args.dbias), nullptr, nullptr}}, on);
                });
              });
  });
  check_launch("gelu_backward");
}

void add_bias(const AddBiasArgs& args, int64_t rows, void* stream) {
  if (rows <= 0 || args.columns <= 0) {
    return;
  }
  with_rows(
      args.element, aligned(args.x, args.residual, args.bias, args.out), args.columns,
      [&](auto type, auto width, auto held, unsigned threads) {
        with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
          TRIREME_LAUNCH(
              (add_bias_kernel<decltype(type), decltype(parameter), decltype(width)::value, decltype(held)::value>),
              row_blocks(rows), threads, static_cast<cudaStream_t>(stream))
          (args, rows);
        });
      });
  check_launch("add_bias");
}

void column_sum(const ColumnSumArgs& args, int64_t rows, float* partials, void* stream) {
  if (rows <= 0 || args.columns <= 0) {
    return;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  const unsigned blocks = sum_blocks(rows);
  with_rows(args.element, aligned(args.x, partials), args.columns,
            [&](auto type, auto width, auto held, unsigned threads) {
              TRIREME_LAUNCH((column_sum_kernel<decltype(type), decltype(width)::value, decltype(held)::value>), blocks,
                             threads, on)
              (args, rows, partials);
              with_parameters<decltype(type)>(args.parameters, [&](auto parameter) {
                using P = decltype(parameter);
                add_partials<P>(partials, blocks, args.columns, {{static_cast<P*>(args.sum), nullptr, nullptr}}, on);
              });
            });
  check_launch("column_sum");
}

void gated_silu(const GatedSiluArgs& args, int64_t elements, void* stream) {
  if (elements <= 0) {
    return;
  }
  with_packs(args.element, aligned(args.gate, args.up, args.y), [&](auto type, auto width) {
    constexpr int kWidth = decltype(width)::value;
    TRIREME_LAUNCH((gated_silu_kernel<decltype(type), kWidth>), element_blocks((elements + kWidth - 1) / kWidth),
                   kElementThreads, static_cast<cudaStream_t>(stream))
    (args, elements);
  });
  check_launch("gated_silu");
}

void gated_silu_backward(const GatedSiluArgs& args, int64_t elements, void* stream) {
  if (elements <= 0) {
    return;
  }
  with_packs(args.element, aligned(args.gate, args.up, args.dy, args.dgate, args.dup), [&](auto type, auto width) {
    constexpr int kWidth = decltype(width)::value;
    TRIREME_LAUNCH((gated_silu_backward_kernel<decltype(type), kWidth>),
                   element_blocks((elements + kWidth - 1) / kWidth), kElementThreads, static_cast<cudaStream_t>(stream))
    (args, elements);
  });
  check_launch("gated_silu_backward");
}

void dropout(const DropoutArgs& args, int64_t elements, void* stream) {
  if (elements <= 0) {
    return;
  }
  const auto start = [&](auto type, auto width) {
    constexpr int kWidth = decltype(width)::value;
    TRIREME_LAUNCH((dropout_kernel<decltype(type), kWidth>), element_blocks((elements + kWidth - 1) / kWidth),
                   kElementThreads, static_cast<cudaStream_t>(stream))
    (args, elements);
  };
  const bool wide = aligned(args.x, args.residual, args.y);
  if (args.element == Element::f16) {
    wide ? start(__half(), Width<kWide<__half>>()) : start(__half(), Width<1>());
  } else {
    with_packs(args.element, wide, start);
  }
  check_launch("dropout");
}

void rotary(const RotaryArgs& args, int64_t rows, void* stream) {
  if (rows <= 0 || args.heads <= 0 || args.head_size < 2) {
    return;
  }
  const int64_t half = args.head_size / 2;
  const int wide_width = args.element == Element::bf16 ? kWide<__nv_bfloat16> : kWide<float>;
  const bool wide = aligned(args.x, args.y, args.cos, args.sin) && wide_heads(args.x_at, half, wide_width) &&
                    wide_heads(args.y_at, half, wide_width);
  with_packs(args.element, wide, [&](auto type, auto width) {
    constexpr int kWidth = decltype(width)::value;
    TRIREME_LAUNCH((rotary_kernel<decltype(type), kWidth>), element_blocks(rows * args.heads * half / kWidth),
                   kElementThreads, static_cast<cudaStream_t>(stream))
    (args, rows);
  });
  check_launch("rotary");
}

} // namespace trireme::kernels::cuda
