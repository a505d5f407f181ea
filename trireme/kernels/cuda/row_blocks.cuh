#pragma once

#include <trireme/kernels/cuda/launch.cuh>
#include <trireme/kernels/cuda/packs.cuh>
#include <trireme/kernels/cuda/reduce.cuh>

#include <cstdint>

// Rows of a layer, one block of threads for each. A thread has the same columns in every row, so sums over rows
// stay in registers. A pass that reads a row again finds it in the caches.

namespace trireme::kernels::cuda {
namespace {

constexpr int64_t kMostThreads = 512; // each with up to 128 registers
/// Packs of a row for which a thread keeps a sum over rows in registers. With more, sums are kept in memory.
constexpr int kMostHeld = 4;

/// Blocks that rows are dealt to where sums over rows are needed: each has a row of partial sums.
constexpr int64_t kSumBlocks = 256;
constexpr int64_t kMostRowBlocks = 65535;

/// How a row of `columns` in packs of kWidth is dealt to the threads of a block.
struct RowThreads {
  unsigned threads;
  int held; ///< packs of each thread: 1, 2, 4; 0: more than most_held

  RowThreads(int64_t columns, int width, int most_held) {
    const int64_t packs = (columns + width - 1) / width;
    const int64_t needed = whole_warps(packs), shared = whole_warps((packs + most_held - 1) / most_held);
    const int64_t wanted = needed < 256 ? needed : shared < 128 ? 128 : shared; // several packs hide their latency
    threads = static_cast<unsigned>(wanted < kMostThreads ? wanted : kMostThreads);
    const int64_t each = (packs + threads - 1) / threads;
    held = each <= 1 ? 1 : each <= 2 ? 2 : each <= most_held ? 4 : 0;
  }
};

/// Calls f(k, column) for the packs of this thread; k counts them.
template <int kHeld, int kWidth, class F>
__device__ inline void each_pack(int64_t columns, const F& f) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t column = (static_cast<int64_t>(k) * blockDim.x + threadIdx.x) * kWidth;
      if (column < columns) {
        f(k, column);
      }
    }
  } else {
    for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < columns;
         column += static_cast<int64_t>(blockDim.x) * kWidth) {
      f(0, column);
    }
  }
}

/// Sums over the rows of this block for the columns of this thread: in registers, or in the block's row of partial sums
/// where a thread has more columns than that. Added to memory by finish().
template <int kHeld, int kWidth>
class ColumnSums {
 public:
  /// partials: [blocks, columns]; nullptr: not wanted.
  __device__ ColumnSums(float* partials, int64_t columns)
      : own_(partials != nullptr ? partials + blockIdx.x * columns : nullptr), columns_(columns) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          held_[k].x[i] = 0;
        }
      }
    } else if (own_ != nullptr) {
      each_pack<0, kWidth>(columns, [&](int, int64_t column) {
        Pack<kWidth> none;
        for (int i = 0; i < kWidth; ++i) {
          none.x[i] = 0;
        }
        none.store(own_ + column);
      });
    }
  }

  __device__ void add(int k, int64_t column, const Pack<kWidth>& more) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        held_[k].x[i] += more.x[i];
      }
    } else if (own_ != nullptr) {
      Pack<kWidth> sum = Pack<kWidth>::load(own_ + column);
      for (int i = 0; i < kWidth; ++i) {
        sum.x[i] += more.x[i];
      }
      sum.store(own_ + column);
    }
  }

  __device__ void finish() const {
    if constexpr (kHeld > 0) {
      if (own_ != nullptr) {
        each_pack<kHeld, kWidth>(columns_, [&](int k, int64_t column) { held_[k].store(own_ + column); });
      }
    }
  }

 private:
  Pack<kWidth> held_[kHeld > 0 ? kHeld : 1];
  float* own_;
  int64_t columns_;
};

/// Where up to three sums over rows go, [columns] each; nullptr: not wanted.
template <class P>
struct ColumnResults {
  P* to[3];
};

/// to[k][j] = the sum of column j of the k-th partials, [sums, blocks, columns], in order. blockIdx.y is k.
template <class P>
__global__ void add_column_partials(const float* partials, int blocks, int64_t columns, const ColumnResults<P> results) {
  P* const to = results.to[blockIdx.y];
  if (to == nullptr) {
    return;
  }
  const float* const own = partials + static_cast<int64_t>(blockIdx.y) * blocks * columns;
  for (int64_t j = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; j < columns;
       j += gridDim.x * static_cast<int64_t>(blockDim.x)) {
    float total = 0;
    for (int block = 0; block < blocks; ++block) {
      total += own[block * columns + j];
    }
    round_to(total, to[j]);
  }
}

inline unsigned row_blocks(int64_t rows) {
  return static_cast<unsigned>(rows < kMostRowBlocks ? rows : kMostRowBlocks);
}
inline unsigned sum_blocks(int64_t rows) {
  return static_cast<unsigned>(rows < kSumBlocks ? rows : kSumBlocks);
}

/// Adds up the partial sums of each block, for those results that are wanted.
template <class P>
void add_partials(const float* partials, unsigned blocks, int64_t columns, const ColumnResults<P>& results,
                  cudaStream_t stream) {
  unsigned sums = 3;
  while (sums > 0 && results.to[sums - 1] == nullptr) {
    --sums;
  }
  constexpr int kThreads = 128;
  const auto across = static_cast<unsigned>((columns + kThreads - 1) / kThreads);
  if (sums > 0) {
    TRIREME_LAUNCH((add_column_partials<P>), dim3(across, sums), kThreads, stream)
    (partials, static_cast<int>(blocks), columns, results);
  }
}

/// Calls f(P()) for the type of weights, shifts, biases and their gradients: `parameters`, bf16 only beside elements of
/// bf16.
template <class T, class F>
void with_parameters(Element parameters, const F& f) {
  if constexpr (sizeof(T) == sizeof(__nv_bfloat16)) {
    if (parameters == Element::bf16) {
      return f(__nv_bfloat16());
    }
  }
  f(float());
}

/// Calls f(T(), width, held, threads): with packs of 16 bytes where arrays and rows allow it.
template <int kMost = kMostHeld, class F>
void with_rows(Element element, bool wide, int64_t columns, const F& f) {
  const int width = element == Element::bf16 ? kWide<__nv_bfloat16> : kWide<float>;
  with_packs(element, wide && columns % width == 0, [&](auto type, auto packs) {
    const RowThreads dealt(columns, decltype(packs)::value, kMost);
    if (dealt.held == 1) {
      f(type, packs, Width<1>(), dealt.threads);
    } else if (dealt.held == 2) {
      f(type, packs, Width<2>(), dealt.threads);
    } else if (kMost == 4 && dealt.held == 4) {
      f(type, packs, Width<kMost>(), dealt.threads);
    } else {
      f(type, packs, Width<0>(), dealt.threads);
    }
  });
}

} // namespace
} // namespace trireme::kernels::cuda
