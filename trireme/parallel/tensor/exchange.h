#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch::autograd {
struct Node;
}

/// What tensor-parallel ranks exchange within a layer, as functions that autograd knows. Where a group has one rank
/// they return their argument.
///
/// Every rank calls them in the same order, forward and backward. Tensors may be on any device. Derivatives
/// of derivatives (create_graph) are refused with an Error. P: bytes of the whole tensor, N: ranks.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053 (f and g); Korthikanti et al. 2022, arXiv:2205.05198 (sequence
/// parallelism).
namespace trireme::tensor {

/// f: x as it is; backward adds up the gradients of all ranks. In front of a layer that is split by columns.
/// Cost: backward 2P(N-1)/N sent by each rank.
at::Tensor copy_to_ranks(const at::Tensor& x, const comm::Group& ranks);

/// g: the sum of all ranks' x; backward hands the gradient on as it is. Behind a layer that is split by rows. Cost:
/// 2P(N-1)/N.
at::Tensor sum_over_ranks(const at::Tensor& x, const comm::Group& ranks);

/// Rank r's part of dim `dim`, which divides by N; backward gathers the gradients of all parts. From a tensor that all
/// ranks have to parts of a sequence. Cost: backward P(N-1)/N. Errors: InputError for a dim that does not divide.
at::Tensor take_part(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// All ranks' parts, side by side in dim `dim`; backward takes this rank's part of the gradient, which every rank has
/// whole. Cost: P(N-1)/N.
at::Tensor join_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// All ranks' parts, side by side in dim `dim`; backward adds up the gradients of all ranks and keeps this rank's part.
/// In front of a layer that is split by columns, where its input is split by sequence: in place of copy_to_ranks().
/// Cost: P(N-1)/N, and as much backward.
at::Tensor gather_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// This rank's part, in dim `dim`, of the sum of all ranks' x; backward gathers the gradients of all parts. Behind a
/// layer that is split by rows, where its output is split by sequence: in place of sum_over_ranks(). Cost: P(N-1)/N,
/// and as much backward. Errors: InputError for a dim that does not divide.
at::Tensor sum_to_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// Whether a node of autograd's graph is one of these functions. It got one tensor, and its backward reads nothing of
/// the forward.
bool is_exchange(const torch::autograd::Node& node);

} // namespace trireme::tensor
