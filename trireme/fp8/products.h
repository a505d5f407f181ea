#pragma once

#include <trireme/fp8/quantize.h>

#include <ATen/core/Tensor.h>

namespace trireme::fp8 {

/// Sizes of factors that FP8 products of a GPU take: multiples of this.
inline constexpr int64_t kMultiple = 16;

/// Whether sums may be less exact than fp32 where a GPU is faster with it (torch._scaled_mm's use_fast_accum).
enum class Sums { exact, fast };

/// The products of FP8 matrices on one kind of device.
struct Products {
  /// a b^T of a [n, k] and b [m, k], in bf16 [n, m]: products and sums in fp32, times both scales, rounded once.
  /// Factors may have different formats, and need not be contiguous.
  at::Tensor (*multiply)(const Quantized& a, const Quantized& b, Sums sums);
  /// Computed with fp32 products, slower than bf16 itself.
  bool emulated = false;
};

/// Products on the device of a tensor: a GPU's own if it has any, which one small product finds out; else emulated.
/// Both compute the same but for the order of sums. Emulated products keep fp32 copies of both factors while they run.
const Products& products(at::Device device);

} // namespace trireme::fp8
