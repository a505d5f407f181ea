#pragma once

#include <trireme/fused/logit_chunks.h>
#include <trireme/parallel/tensor/ranks.h>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::tensor {

/// Cross-entropy in nats of logits over `classes` classes, whose columns are split over the ranks: logits [R,
/// part_of(classes).size()], class numbers [R] int64, the same on every rank. No rank has the logits of all classes,
/// nor their gradient. Reduction Mean (over rows that are not ignored) or Sum. The loss is fp32 (fp64 for fp64),
/// bit-equal on every rank.
///
/// Kept for backward: the logits and one number per row. Backward overwrites the logits with their gradient: no other
/// code may read them afterwards. Cost: one all-gather of two numbers per row and rank; none backward. Source: Shoeybi
/// et al. 2019, arXiv:1909.08053, section 3. Errors: InputError for a target outside [0, classes) other than
/// ignore_index (on the CPU), and for sizes that do not fit.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t classes, const Ranks& ranks,
                         int64_t reduction = at::Reduction::Mean, int64_t ignore_index = -100);

/// Whether linear_cross_entropy() of `rows` tokens is the better form: their logits need more than one chunk, or a GPU
/// pads them. The same on every rank. `weight` may be a shard that is not gathered.
bool takes_chunks(const at::Tensor& x, const at::Tensor& weight, int64_t rows, int64_t classes, const Ranks& ranks);

/// The loss of the last layer's logits, column_linear(x, weight), which never exist at once: they are computed in
/// chunks of `most_bytes`, and forward computes the gradients too (fused::linear_cross_entropy()).
///
/// x is [B, T, H], or [B, T/N, H] if the sequence is split; weight [part of classes, H]. The class numbers are those of
/// all B T tokens in the order of x.
///
/// Every rank cuts the same chunks. Cost beside the products: enter()'s, and one all-gather per chunk. Errors: as
/// cross_entropy().
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                int64_t classes, const Ranks& ranks, int64_t reduction = at::Reduction::Mean,
                                int64_t ignore_index = -100, int64_t most_bytes = fused::kLogitChunkBytes);

} // namespace trireme::tensor
