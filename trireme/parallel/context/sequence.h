#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Splits the tokens of a sequence among ranks.
///
/// T tokens, N ranks. Kind::ring cuts the sequence into 2N chunks; rank r has chunks r and 2N-1-r. So causal attention
/// is equal work on each rank (zig-zag; idea of Brandon et al. 2023, arXiv:2311.09431). Kind::ulysses cuts it into N
/// chunks; rank r has chunk r. A group of one has all tokens. Errors of all functions: InputError when 2N (ring) or N
/// (ulysses) does not divide T.
namespace trireme::context {

/// This rank's tokens along `dim` of `x`, which is the same on all ranks: [.., T, ..] -> [.., T/N, ..], contiguous.
/// No communication. Differentiable: the gradient of other tokens is zero; the ranks' gradients sum to the full
/// one.
at::Tensor take_tokens(const at::Tensor& x, const comm::Group& ranks, Kind kind, int64_t dim);

/// int64 [T/N]: the position in the full sequence, from 0, of each of this rank's tokens.
at::Tensor positions(int64_t length, const comm::Group& ranks, Kind kind, const at::Device& device);

/// Gathers the full sequence in order: [.., T/N, ..] -> [.., T, ..] on every rank; the inverse of take_tokens().
/// Collective: an all-gather. Differentiable: backward takes this rank's part of the gradient, without communication,
/// for a loss that every rank computes alike.
at::Tensor join_tokens(const at::Tensor& x, const comm::Group& ranks, Kind kind, int64_t dim);

} // namespace trireme::context
