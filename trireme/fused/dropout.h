#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::fused {

/// x of any shape with each element 0 with probability p, else x / (1 - p).
///
/// The mask is computed from a seed and the element's number (kernels/dropout.h), in backward again: one number of 8
/// bytes is kept, whatever the size of x. The seed is drawn on x's device from its default generator, by an operator
/// that CUDA graphs replay. So manual_seed(), checkpoints of random state, recomputation and graphs repeat the mask.
/// One pass over memory. fp32, bf16 and fp16; arithmetic is fp32. at::dropout, which keeps a mask, does what has no
/// kernel: other types, and CPUs without AVX2. Differentiable twice. Errors: InputError for a p outside [0, 1].
at::Tensor dropout(const at::Tensor& x, double p);

/// residual + dropout(x, p), in one pass and rounded once. If one is fp32 and the other bf16, the result is fp32.
/// Errors: InputError also for different shapes.
at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& residual, double p);

} // namespace trireme::fused
