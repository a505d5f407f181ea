#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace trireme::fp8 {

/// 8-bit floating-point types. Source: Micikevicius et al. 2022, arXiv:2209.05433.
enum class Format {
  /// 4 bits of exponent, 3 of mantissa, no infinity; the largest number is 448 (at::kFloat8_e4m3fn).
  e4m3,
  /// 5 bits of exponent, 2 of mantissa; the largest number is 57344 (at::kFloat8_e5m2).
  e5m2
};

at::ScalarType scalar_type(Format format);
double largest(Format format);

/// x rounded to the nearest number of the format, ties to even. Numbers beyond the largest, infinities too, become the
/// largest; NaN stays NaN.
at::Tensor saturating_cast(const at::Tensor& x, Format format);

/// Which elements of a matrix share a scale.
enum class Granularity { tensor, row };

/// x of a matrix [rows, columns] as values * scale.
struct Quantized {
  at::Tensor values; ///< of the format's type, [rows, columns]
  at::Tensor scale;  ///< fp32, [1, 1] or [rows, 1]; a power of two if rounded

  /// The transposed matrix, as a view. Only for one scale per tensor.
  Quantized transposed() const { return {values.t(), scale}; }
};

/// Scales a matrix [rows, columns] of any floating type so that its largest magnitude (of the tensor, or of each row)
/// is the format's largest number, or at least half of it if scales are powers of two. A row with an infinity or NaN
/// becomes NaN. Cost: two passes over x, and an fp32 copy while it runs. x must not be empty.
Quantized quantize(const at::Tensor& x, Format format, Granularity granularity, bool power_of_2);

} // namespace trireme::fp8
