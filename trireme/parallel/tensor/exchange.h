#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch::autograd {
struct Node;
}

/// Exchanges among tensor-parallel ranks within a layer, as autograd functions. In a group of one they
/// return their argument.
///
/// Every rank calls them in the same order, forward and backward. Tensors may be on any device. Double
/// backward (create_graph) throws an Error. P: bytes of the full tensor, N: ranks. Source: Shoeybi et
/// al. 2019, arXiv:1909.08053 (f and g); Korthikanti et al. 2022, arXiv:2205.05198 (sequence
/// parallelism).
namespace trireme::tensor {

/// f: returns x; backward all-reduces the gradient. Used before a layer that is split by columns. Cost: backward
/// 2P(N-1)/N sent by each rank.
at::Tensor copy_to_ranks(const at::Tensor& x, const comm::Group& ranks);

/// g: all-reduces x; backward passes the gradient on. Used after a layer that is split by rows. Cost:
/// 2P(N-1)/N.
at::Tensor sum_over_ranks(const at::Tensor& x, const comm::Group& ranks);

/// Rank r's part of dim `dim`; N must divide it. Backward all-gathers the gradients. Used from a tensor that all ranks
/// have to parts of a sequence. Cost: backward P(N-1)/N. Errors: InputError for a dim that N does not divide.
at::Tensor take_part(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// All-gathers the ranks' parts along `dim`; backward takes this rank's part of the gradient, which every rank has in
/// full. Cost: P(N-1)/N.
at::Tensor join_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// All-gathers the ranks' parts along `dim`; backward reduce-scatters the gradients. Used before a layer that is
/// split by columns if its input is split by sequence, instead of copy_to_ranks(). Cost: P(N-1)/N, and as much
/// backward.
at::Tensor gather_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// Reduce-scatters x along `dim`; backward all-gathers the gradients. Used after a layer that is split by rows if its
/// output is split by sequence, instead of sum_over_ranks(). Cost: P(N-1)/N, and as much backward. Errors: InputError
/// for a dim that N does not divide.
at::Tensor sum_to_parts(const at::Tensor& x, const comm::Group& ranks, int64_t dim);

/// True if a node of autograd's graph is one of these functions: one input tensor, and a backward that reads nothing of
/// the forward.
bool is_exchange(const torch::autograd::Node& node);

} // namespace trireme::tensor
