#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::parallel::server {

/// Numbers of the rows of `rows`, [n, m], fp32, bf16 or fp16, on any device, that have an element other than 0 (NaN
/// is): int64, ascending, on that device. Cost: reads it once. On a device it waits for the answer.
at::Tensor rows_with_values(const at::Tensor& rows);

/// A sparse piece on a server: the sum of its gradients, of which only some rows are not 0, and which rows have changed
/// since when.
///
/// Cost of a step: that of the rows in it, and one byte for each row of the piece; since() reads 8 bytes for each.
class SparseRows {
 public:
  /// `gradient`: that of the piece, fp32, on the CPU; zeros.
  explicit SparseRows(const at::Tensor& gradient);

  void begin_sum();
  /// `numbers`: of the piece, int64, ascending; `rows`: as many, of any type.
  void add(const at::Tensor& numbers, const at::Tensor& rows);
  /// Those that were added since begin_sum(): int64, ascending.
  at::Tensor touched() const;
  /// Their gradients, one after the other.
  at::Tensor gradients() const;

  /// The touched rows, or all of them, have other values from this version on. Versions ascend.
  void change_touched(int64_t version);
  void change_all(int64_t version);
  /// Rows that have changed after `version`: int64, ascending.
  at::Tensor since(int64_t version) const;

 private:
  at::Tensor gradient_;   // [rows, numel of a row]
  at::Tensor is_touched_; // [rows], bool
  at::Tensor changed_at_; // [rows], int64
};

} // namespace trireme::parallel::server
