#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// A row-major matrix in a flat tensor, from element `begin` on.
struct FlatMatrix {
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t numel() const { return rows * columns; }
};

/// The mean over a group's ranks of matrices in a flat tensor, by low-rank approximations, over any backend.
///
/// A rank adds its error to its numbers. For each matrix M it sends M Q; the mean of these, made orthonormal, is P. It
/// sends M^T P, whose mean is the next round's Q, and the result is P Q^T: one step of the power method per round,
/// continued from the last. It keeps M - P P^T M as error: the sum of all rounds' results is the sum of the true means,
/// less the mean of the errors. A mean of at most the requested rank arrives up to rounding. Elements in no matrix, and
/// matrices that would not get smaller, are summed uncompressed. All ranks get the same bits if their matrix products
/// have the same bits, as on processors of one kind. A group of one exchanges nothing and loses nothing.
///
/// Cost for rank r and N ranks: each rank sends 2 (N - 1)/N times 4 r (rows + columns) bytes per matrix, in two
/// all-reduces for all matrices. A matrix takes 4 r rows columns multiplications.
///
/// Source: Vogels et al. 2019, PowerSGD, arXiv:1905.13727.
class PowerSgd {
 public:
  /// State that the owner keeps between rounds, and in checkpoints. fp32.
  struct State {
    /// [numel]; different on each rank.
    at::Tensor error;
    /// Q of each matrix, [columns, rank], concatenated; the same on every rank.
    at::Tensor right;
  };

  /// The same on every rank. Errors: Error for matrices that overlap or leave the tensor, or a rank below 1.
  PowerSgd(Group group, int64_t numel, std::vector<FlatMatrix> matrices, int64_t rank);

  /// No error, and random Q from `seed`, which is the same on every rank.
  State first_state(at::Device device, uint64_t seed) const;

  /// `x` [numel], fp32, contiguous, becomes the mean. Returns when it is done. Collective.
  /// Errors: Error for a tensor or a state of another shape, type or device; PeerError as Group's.
  void run(const at::Tensor& x, const State& state, std::string_view what = "") const;

 private:
  // Offsets of each matrix's numbers in a message.
  struct Message {
    std::vector<int64_t> begin;
    int64_t total = 0;
  };

  at::Tensor left_of(const at::Tensor& message, size_t matrix) const;
  at::Tensor right_of(const at::Tensor& message, size_t matrix) const;
  static void make_orthonormal(at::Tensor columns);

  Group group_;
  int64_t numel_;
  int64_t rank_;
  std::vector<FlatMatrix> matrices_; // compressed ones
  std::vector<FlatMatrix> plain_;    // uncompressed elements between them, as rows
  Message first_;                    // P of each matrix, then uncompressed elements
  Message second_;                   // Q of each matrix
};

} // namespace trireme::comm
