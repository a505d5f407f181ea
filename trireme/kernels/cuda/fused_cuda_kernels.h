#pragma once

#include <trireme/kernels/dropout.h>
#include <trireme/kernels/fused_kernels.h>

#include <cstdint>

/// The row loops of fused_kernels.h for CUDA, over raw GPU pointers: the same arguments, `rows` (elements for
/// gated_silu and dropout) from the first on. `parameters` may be bf16 where `element` is. Sums over rows are written,
/// not added (0 rows write nothing). Arithmetic is fp32; results differ from the CPU's only by the order of sums and
/// the last digits of exp(), and are the same in every run. Memory is read once, 16 bytes at a time where arrays begin
/// at multiples of 16 bytes and so do rows. All return after the launch; the stream reports later errors.
///
/// `stream` is a cudaStream_t. `partials`: column_partials() floats of GPU memory for sums over rows, for one stream at
/// a time; may be nullptr where no such sum is wanted. Errors: Error with CUDA's message when the launch fails.
namespace trireme::kernels::cuda {

/// Floats that `sums` sums over rows of `columns` need.
int64_t column_partials(int64_t columns, int sums);

void gelu(const GeluArgs& args, int64_t rows, void* stream);
void gelu_backward(const GeluArgs& args, int64_t rows, float* partials, void* stream); ///< 1 sum
void gated_silu(const GatedSiluArgs& args, int64_t elements, void* stream);
void gated_silu_backward(const GatedSiluArgs& args, int64_t elements, void* stream);
void add_bias(const AddBiasArgs& args, int64_t rows, void* stream);
void column_sum(const ColumnSumArgs& args, int64_t rows, float* partials, void* stream); ///< 1 sum
void rotary(const RotaryArgs& args, int64_t rows, void* stream);
/// The CPU's bits. f16 too.
void dropout(const DropoutArgs& args, int64_t elements, void* stream);

void layer_norm(const LayerNormArgs& args, int64_t rows, void* stream);
void layer_norm_backward(const LayerNormArgs& args, int64_t rows, float* partials, void* stream); ///< 3 sums
void rms_norm(const RmsNormArgs& args, int64_t rows, void* stream);
void rms_norm_backward(const RmsNormArgs& args, int64_t rows, float* partials, void* stream); ///< 1 sum

void cross_entropy(const CrossEntropyArgs& args, int64_t rows, void* stream);
void cross_entropy_backward(const CrossEntropyArgs& args, int64_t rows, void* stream);

} // namespace trireme::kernels::cuda
