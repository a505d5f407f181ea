#pragma once

#include <trireme/attention/block_layout.h>

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme::fused {

/// softmax(Q K^T / sqrt(D)) V over the pairs of blocks in `layout`, and in a causal one up to each query's own key.
/// q [B, A, T, D], k and v [B, K, T, D], where K divides A, all of one type. Returns [B, A, T, D], in memory [B, T, A,
/// D]. The layout is for T tokens, and has one pattern or A.
///
/// Kept for backward: q, k, v, the result and one float per query and head. Cost: of attention to all keys the layout's
/// density, and no matrix of scores. Arithmetic is fp32. Where the CPU's kernels do not support the tensors (other
/// devices, fp16), libtorch computes it with a mask of [A or 1, T, T]. Errors: InputError for sizes and
/// types that do not fit, and for blocks of queries that attend to nothing.
at::Tensor sparse_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            std::shared_ptr<const attention::BlockLayout> layout);

/// The tokens that attend to each other: bool [patterns, tokens, tokens], on the CPU.
at::Tensor mask_of(const attention::BlockLayout& layout, int64_t tokens);

} // namespace trireme::fused
