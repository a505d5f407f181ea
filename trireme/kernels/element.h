#pragma once

namespace trireme::kernels {

/// Types of elements. bf16 and f16 are computed in float and rounded to nearest, ties to even.
enum class Element { f32, f64, f16, bf16, u8, i8, i16, i32, i64 };

} // namespace trireme::kernels
