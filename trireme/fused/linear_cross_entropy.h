#pragma once

#include <trireme/fused/logit_chunks.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

/// A model's last layer and its loss in one, in chunks of rows: the logits of a long batch never exist at once, nor
/// does their gradient. Forward computes the gradients of the hidden values and of the weight too, chunk after chunk,
/// and backward multiplies them by the loss' gradient: every product is computed once. Source: Hsu et al. 2024, Liger
/// Kernel, arXiv:2410.10989, section 3.2.
namespace trireme::fused {

/// The classes of the rows.
struct ClassColumns {
  at::Tensor column; ///< [N] int64: the weight's row of the class; negative: another rank has it
  at::Tensor counts; ///< [N] bool: false for ignored rows, which have any column
  /// From logit_row_terms() of this rank's columns [2, n] to those of all ranks' columns; empty: there is no other.
  /// Called once per chunk.
  std::function<at::Tensor(const at::Tensor& terms)> join;
};

/// How the logits are cut: chunks of `rows` rows, in memory `padding` columns wider.
struct LogitCut {
  int64_t rows = 0;
  int64_t padding = 0;

  bool is_one(int64_t all_rows) const { return rows >= all_rows; }
};

/// The cut of logits [rows, columns] of x's device, where the products have the type `type`. GPUs pad columns to a
/// multiple of kLogitPadding, which has no effect on results: a padded copy of the weight is made for each loss.
LogitCut cut_logits(int64_t rows, int64_t columns, at::ScalarType type, at::Device device,
                    int64_t most_bytes = kLogitChunkBytes);

/// Whether linear_cross_entropy() of `rows` rows is the better form: the logits do not fit in one chunk, or a GPU pads
/// them. False for products in fp16, whose gradients need the loss' scale before they are rounded, and for int8
/// weights.
bool takes_chunks(const at::Tensor& x, const at::Tensor& weight, const LogitCut& cut, int64_t rows);

/// Type of the products of x: autocast's if it is enabled.
at::ScalarType product_type(const at::Tensor& x);

/// The mean over counted rows, or the sum, of the cross-entropy in nats of x W^T: x [N, H] and weight [V, H], both
/// converted to product_type(x). The loss is fp32 (fp64 for fp64); gradients of a bf16 weight are added up in fp32.
///
/// Kept for backward: the gradients of x and of the weight (fp32 for a bf16 weight in several chunks). Memory beside
/// them: the logits of one chunk. A second backward throws an Error. Errors: as cross_entropy(), but columns are not
/// checked.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const ClassColumns& classes, bool mean,
                                const LogitCut& cut);

} // namespace trireme::fused
