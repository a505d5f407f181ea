#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Which tokens of a sequence a rank has.
///
/// T tokens, N ranks: Kind::ring cuts the sequence into 2N chunks, of which rank r has chunks r and 2N-1-r, so that
/// causal attention is equally much work on each rank (zig-zag; Brandon et al. 2023, arXiv:2311.09431, have the idea);
/// Kind::ulysses cuts it into N, of which rank r has chunk r. A group of one has all tokens. Errors of all functions:
/// InputError when 2N (ring) or N (ulysses) does not divide T.
namespace trireme::context {

/// This rank's tokens of `x`, which every rank has whole, along dim `dim`: [.., T, ..] -> [.., T/N, ..], contiguous. No
/// communication. Differentiable: the gradient is zero elsewhere, the ranks' gradients of `x` add up to the whole.
at::Tensor take_tokens(const at::Tensor& x, const comm::Group& ranks, Kind kind, int64_t dim);

/// int64 [T/N]: the place in the whole sequence, from 0, of each of this rank's tokens.
at::Tensor positions(int64_t length, const comm::Group& ranks, Kind kind, const at::Device& device);

/// The whole in order from every rank's tokens: [.., T/N, ..] -> [.., T, ..] on every rank; the inverse of
/// take_tokens(). Collective, an all-gather. Differentiable: backward takes this rank's part of the gradient, without
/// communication; it is the gradient of a loss that every rank computes alike.
at::Tensor join_tokens(const at::Tensor& x, const comm::Group& ranks, Kind kind, int64_t dim);

} // namespace trireme::context
