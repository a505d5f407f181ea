#pragma once

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

} // namespace trireme::tensor
