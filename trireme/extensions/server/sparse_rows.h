#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::parallel::server {

/// Returns the indices of the rows of `rows` that have an element other than 0 (NaN counts): int64, ascending, on the
/// device of `rows`. `rows`: [n, m], fp32, bf16 or fp16, on any device. Cost: reads it once; on a GPU it waits.
at::Tensor rows_with_values(const at::Tensor& rows);

/// Sum of the gradients of a sparse piece on a server, and the version at which each row last changed.
///
/// Cost of a step: its rows, and one byte for each row of the piece; since() reads 8 bytes for each row.
class SparseRows {
 public:
  /// `gradient`: the piece's gradient, fp32, on the CPU, filled with zeros.
  explicit SparseRows(const at::Tensor& gradient);

  void begin_sum();
  /// `numbers`: indices of rows in the piece, int64, ascending. `rows`: as many rows, of any type.
  void add(const at::Tensor& numbers, const at::Tensor& rows);
  /// Returns the rows that were added since begin_sum(): int64, ascending.
  at::Tensor touched() const;
  /// Returns the gradients of touched(), concatenated.
  at::Tensor gradients() const;

  /// Marks the touched rows, or all rows, as changed at `version`. Versions ascend.
  void change_touched(int64_t version);
  void change_all(int64_t version);
  /// Returns the rows that changed after `version`: int64, ascending.
  at::Tensor since(int64_t version) const;

 private:
  at::Tensor gradient_;   // [rows, numel of a row]
  at::Tensor is_touched_; // [rows], bool
  at::Tensor changed_at_; // [rows], int64
};

} // namespace trireme::parallel::server
