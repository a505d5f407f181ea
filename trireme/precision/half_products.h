#pragma once

#include <c10/core/ScalarType.h>

namespace trireme::precision {

/// Whether libtorch multiplies matrices of this type with the CPU's own instructions. On x86 it needs AVX-NE-CONVERT,
/// or AVX-512 for bf16 and AVX512-FP16 for fp16.
bool has_fast_products(c10::ScalarType type);

/// Where has_fast_products() says no, products of bf16 or fp16 matrices on the CPU run in fp32 from now on, and are
/// rounded once. libtorch's own loops take 3 to 100 times as long, except for small products.
///
/// For the whole process: aten::mm, addmm, bmm and baddbmm of CPU tensors, and so linear layers, matmul and their
/// gradients, also under autocast. Other types, products with less than 4 rows or columns, and vectors are as before.
/// Cost: a thread keeps fp32 copies of a block of each operand and of the result, 1 MB each.
/// engine::resolve_precision() calls it, and so initialize(); repeated calls do nothing.
void multiply_halves_in_fp32();

} // namespace trireme::precision
