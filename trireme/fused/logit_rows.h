#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Cross-entropy of rows of logits by the row kernels of their device, else by ATen's operations. These compute some
/// rows at a time in the type of sums (fp32; fp64 for fp64): logits of a long batch never exist whole in it.
namespace trireme::fused {

/// Most logits that are computed at a time, at least one row: 32 MiB in fp32.
inline constexpr int64_t kLogitsAtOnce = int64_t{8} << 20;

/// log sum exp of each row of logits [N, V], and the logit at its column (0 where columns [N] is negative): [2, N] in
/// the type of sums. With V == 0: -inf and 0. Columns must be below V: at::gather() fails for others, and a GPU's
/// kernel gives NaN.
at::Tensor logit_row_terms(const at::Tensor& logits, const at::Tensor& columns, int64_t at_once = kLogitsAtOnce);

/// Writes (softmax - one-hot) * factor to `gradient`, which may be the logits and has their strides, for rows where
/// `counts` [N] is true, else 0. `lse` [N] is in the type of sums and may include logits of other ranks; a negative
/// column has no one-hot. `factor` is one number on the device of the logits.
void write_logit_gradient(const at::Tensor& gradient, const at::Tensor& logits, const at::Tensor& columns,
                          const at::Tensor& counts, const at::Tensor& lse, const at::Tensor& factor,
                          int64_t at_once = kLogitsAtOnce);

} // namespace trireme::fused
