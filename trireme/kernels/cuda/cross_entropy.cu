#include <trireme/kernels/cuda/fused_cuda_kernels.h>
#include <trireme/kernels/cuda/row_blocks.cuh>

namespace trireme::kernels::cuda {
namespace {

constexpr float kLowest = -__builtin_inff();

/// Sum of e^(x - top) over what was seen, in one pass: a larger x rescales it.
struct OnlineSum {
  float top = kLowest;
  float sum = 0;

  template <int kWidth>
  __device__ void add(const Pack<kWidth>& more) {
    float highest = more.x[0];
#pragma unroll
    for (int i = 1; i < kWidth; ++i) {
      highest = fmaxf(highest, more.x[i]);
    }
    if (highest > top) {
      sum *= expf(top - highest);
      top = highest;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum += more.x[i] == kLowest ? 0 : expf(more.x[i] - top); // top may be kLowest too
    }
  }
};

/// The elements of a row from column j on. Those past `columns`, which pad the row, are kLowest: they add nothing.
template <class T, int kWidth>
__device__ inline Pack<kWidth> load_logits(const T* x, int64_t j, int64_t columns) {
  Pack<kWidth> pack = Pack<kWidth>::load(x + j);
  if (j + kWidth > columns) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      pack.x[i] = j + i < columns ? pack.x[i] : kLowest;
    }
  }
  return pack;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kMostThreads) cross_entropy_kernel(const CrossEntropyArgs args, int64_t rows) {
  __shared__ float room[kMostWarps];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(args.logits) + row * args.to_next_row();
    OnlineSum own;
    each_pack<0, kWidth>(args.columns, [&](int, int64_t j) { own.add(load_logits<T, kWidth>(x, j, args.columns)); });
    const float top = over_block<Largest>(own.top, room);
    const float sum = over_block<Sum>(own.sum > 0 ? own.sum * expf(own.top - top) : own.sum, room);
    if (threadIdx.x == 0) {
      const float lse = top + logf(sum);
      const int64_t target = args.target[row];
      args.lse[row] = lse;
      args.loss[row] = target == args.ignore   ? 0.0F
                       : target < 0            ? lse
                       : target < args.columns ? lse - to_float(x[target])
                                               : __int_as_float(0x7fffffff); // NaN: the host does not see targets
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_backward_kernel(const CrossEntropyArgs args, int64_t rows) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(args.logits) + row * args.to_next_row();
    T* const dx = static_cast<T*>(args.dlogits) + row * args.to_next_row();
    const int64_t target = args.target[row];
    const float lse = args.lse[row];
    const float given = args.device_scale != nullptr ? *args.device_scale : args.scale;
    const float scale = target == args.ignore ? 0 : given;
    each_pack<0, kWidth>(args.columns, [&](int, int64_t j) {
      Pack<kWidth> d = load_logits<T, kWidth>(x, j, args.columns);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float hit = j + i == target ? 1 : 0;
        d.x[i] = scale == 0 ? 0 : (expf(d.x[i] - lse) - hit) * scale;
      }
      d.store(dx + j);
    });
  }
}

template <class F>
void with_logits(const CrossEntropyArgs& args, int64_t rows, bool wide, const F& f) {
  if (rows > 0 && args.columns > 0) {
    const int width = args.element == Element::bf16 ? kWide<__nv_bfloat16> : kWide<float>;
    with_packs(args.element, wide && args.to_next_row() % width == 0, [&](auto type, auto packs) {
      const int64_t needed = (args.columns + decltype(packs)::value - 1) / decltype(packs)::value;
      const int64_t threads = whole_warps(needed);
      f(type, packs, static_cast<unsigned>(threads < kMostThreads ? threads : kMostThreads));
    });
  }
}

} // namespace

void cross_entropy(const CrossEntropyArgs& args, int64_t rows, void* stream) {
  with_logits(args, rows, aligned(args.logits), [&](auto type, auto width, unsigned threads) {
    TRIREME_LAUNCH((cross_entropy_kernel<decltype(type), decltype(width)::value>), row_blocks(rows), threads,
                   static_cast<cudaStream_t>(stream))
    (args, rows);
  });
  check_launch("cross_entropy");
}

void cross_entropy_backward(const CrossEntropyArgs& args, int64_t rows, void* stream) {
  with_logits(args, rows, aligned(args.logits, args.dlogits), [&](auto type, auto width, unsigned threads) {
    TRIREME_LAUNCH((cross_entropy_backward_kernel<decltype(type), decltype(width)::value>), row_blocks(rows), threads,
                   static_cast<cudaStream_t>(stream))
    (args, rows);
  });
  check_launch("cross_entropy_backward");
}

} // namespace trireme::kernels::cuda
