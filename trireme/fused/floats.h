#pragma once

#include <trireme/kernels/element.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <new>

namespace trireme::fused {

constexpr std::align_val_t kCacheLine{64};

struct DeleteAligned {
  void operator()(float* floats) const { ::operator delete[](floats, kCacheLine); }
};
using AlignedFloats = std::unique_ptr<float[], DeleteAligned>;

/// `count` floats without values, at a multiple of 64 bytes: a load of 64 bytes elsewhere touches two cache lines.
inline AlignedFloats aligned_floats(size_t count) {
  return AlignedFloats(new (kCacheLine) float[count]);
}

/// A few thousand numbers (a weight, a bias, rows) as floats for the CPU's kernels. ATen's operations would take longer
/// than the copy.
class Floats {
 public:
  explicit Floats(const at::Tensor& any);
  /// f32 or bf16; nullptr stays so.
  Floats(const void* numbers, kernels::Element element, int64_t count);
  /// nullptr if there are none.
  const float* data() const { return data_; }

 private:
  void widen(const void* halves, int64_t count);

  at::Tensor tensor_;
  AlignedFloats copy_;
  const float* data_ = nullptr;
};

/// x.to(type), for a type that it usually has.
inline at::Tensor with_type(const at::Tensor& x, at::ScalarType type) {
  return x.scalar_type() == type ? x : x.to(type);
}

} // namespace trireme::fused
