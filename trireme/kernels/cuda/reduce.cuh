#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace trireme::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kMostWarps = 32;

/// `threads`, rounded up to whole warps.
constexpr int64_t whole_warps(int64_t threads) {
  return (threads + kWarp - 1) / kWarp * kWarp;
}

struct Sum {
  static __device__ float of(float a, float b) { return a + b; }
};
struct Largest {
  static __device__ float of(float a, float b) { return fmaxf(a, b); }
};

/// The result over the threads of a warp, in each of them. All of them must call it.
template <class Op>
__device__ inline float over_warp(float x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = Op::of(x, __shfl_xor_sync(0xffffffffU, x, distance));
  }
  return x;
}

/// The result over the threads of a block, in each of them, in the same order in every run. All of them must call it.
/// `room`: kMostWarps floats of shared memory.
template <class Op>
__device__ inline float over_block(float x, float* room) {
  x = over_warp<Op>(x);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) {
    return x;
  }
  __syncthreads(); // `room` may still be read
  if (threadIdx.x % kWarp == 0) {
    room[threadIdx.x / kWarp] = x;
  }
  __syncthreads();
  x = room[0];
  for (int warp = 1; warp < warps; ++warp) {
    x = Op::of(x, room[warp]);
  }
  return x;
}

} // namespace
} // namespace trireme::kernels::cuda
