#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/tensor/transfer.h>

#include <ATen/core/Tensor.h>

#include <vector>

/// Matrix products whose operand or result is sent in pieces, one piece while another is computed. N ranks, each with
/// T/N of a sample's T tokens; F features.
///
/// A piece is a sample, or as many tokens of each rank's part of it as make 8 MB. Small samples are sent all at once,
/// because each message has a cost. Without gradients: linear.h adds them. Every rank calls them in the same order.
/// Source: Wang et al. 2023, ASPLOS.
namespace trireme::tensor {

struct Products {
  /// x W_i + b_i of all ranks' tokens, [B, T, columns of W_i].
  std::vector<at::Tensor> results;
  /// x of all ranks' tokens, [B, T, F], if `wants_whole`.
  at::Tensor whole;
};
/// Multiplies all ranks' x [B, T/N, F] by `weights` [F, any], in their type. `biases`: none, or one per weight. Without
/// `wants_whole` at most three pieces of the gathered x are in memory at a time. Cost: P(N-1)/N sent by each rank for P
/// bytes of gathered x.
Products multiply_joined(const at::Tensor& x, at::TensorList weights, at::TensorList biases, const comm::Group& ranks,
                         bool wants_whole = false);

/// This rank's tokens, [B, T/N, columns], of the sum over the ranks and i of x_i W_i: `xs` [B, T, any], `weights` [the
/// same, columns]. Returns while the last piece is being sent. Cost: P(N-1)/N sent by each rank for P bytes of the sum.
Transfer start_multiply_to_part(at::TensorList xs, at::TensorList weights, const comm::Group& ranks);

} // namespace trireme::tensor
