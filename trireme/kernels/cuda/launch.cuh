#pragma once

#include <trireme/base/error.h>

#include <cuda_runtime.h>

#ifndef TRIREME_LAUNCH // tests/kernels/cuda_on_cpu defines another
#define TRIREME_LAUNCH(kernel, blocks, threads, stream) kernel<<<blocks, threads, 0, stream>>>
#endif

namespace trireme::kernels::cuda {
namespace {

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw Error("kernels", concat("CUDA could not start ", kernel, ": ", cudaGetErrorString(error), '.'));
  }
}

} // namespace
} // namespace trireme::kernels::cuda
