#pragma once

// Stands in for CUDA's header where the kernels' sources are compiled for the CPU: as much of CUDA as they and
// cuda_test.cpp use. Threads of a block are fibers that take turns at barriers only, blocks run one after the other:
// the same bits in every run. Blocks of even number let the lowest thread that can go on run as far as it can, odd ones
// the highest: a missing barrier shows as wrong numbers.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__ static // of the one block that runs
#define __constant__ static const
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 { // a load from elsewhere than a multiple of 16 bytes is an error on a GPU: UBSan's here
  uint32_t x, y, z, w;
};

template <class T>
void __stwb(T* to, T x) {
  *to = x;
}

struct cuda_on_cpu_index {
  unsigned x = 0, y = 0;
};
struct dim3 {
  dim3(unsigned across, unsigned down = 1) : x(across), y(down) {}
  unsigned x, y;
};
inline cuda_on_cpu_index threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {

/// Runs `thread` as each thread of the grid. Aborts with a message when threads wait for others that never come.
void run_grid(dim3 blocks, unsigned threads, const std::function<void()>& thread);

template <class Kernel>
auto launch(Kernel kernel, dim3 blocks, unsigned threads, void* /*stream*/) {
  return [=](auto... args) { run_grid(blocks, threads, [&] { kernel(args...); }); };
}

} // namespace cuda_on_cpu

#define TRIREME_LAUNCH(kernel, blocks, threads, stream) ::cuda_on_cpu::launch(kernel, blocks, threads, stream)

void __syncthreads();
/// All 32 threads of a warp call these.
uint32_t __reduce_max_sync(uint32_t mask, uint32_t value);
float __shfl_xor_sync(uint32_t mask, float value, int distance);

// Rounded once and by themselves: compile with -ffp-contract=off.
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The runtime's functions: memory of the device is the host's.

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "out of memory";
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes + 1);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
