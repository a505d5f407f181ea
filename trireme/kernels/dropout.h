#pragma once

#include <trireme/kernels/element.h>
#include <trireme/kernels/simd.h>

#include <cstdint>

namespace trireme::kernels {

/// y = residual + x * (0 with probability p, else 1 / (1 - p)), element by element. The gradient of x is the same of
/// y's gradient, without a residual, so no mask is kept. Source: Srivastava et al. 2014, JMLR 15.
///
/// Element i is dropped if word i % 4 of philox(i / 4, seed) is below `threshold` (philox.h), on every device. So p is
/// exact to 2^-32. Arithmetic is fp32: one multiply-add, rounded once.
struct DropoutArgs {
  const void* x = nullptr;
  const void* residual = nullptr; ///< nullptr: none
  void* y = nullptr;              ///< may be x or residual
  const int64_t* seed = nullptr;  ///< one, in memory of the arrays' device: a CUDA graph replays with a new one
  uint32_t threshold = 0;         ///< p * 2^32
  float scale = 1;                ///< 1 / (1 - p)
  Element element = Element::f32; ///< f32, bf16 or f16

  /// Sets threshold and scale for p in [0, 1].
  void set_probability(double p);
};

/// Elements [begin, end).
using DropoutKernel = void (*)(const DropoutArgs& args, int64_t begin, int64_t end);

/// The loop of `simd`, which must be supported(). All give the same bits.
DropoutKernel dropout_kernel(Simd simd);

} // namespace trireme::kernels
