#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/attention.h>

#include <ATen/core/Tensor.h>

namespace trireme::context {

/// attention() with Kind::ulysses, for checked arguments and at least two ranks.
at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                             const AttentionOptions& options, const at::Tensor& key_padding);

/// Attention over all tokens in order. Uses the ring's block if it is fused/'s kernel or ATen would make a T x T
/// matrix; otherwise ATen's attention.
at::Tensor local_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionOptions& options, const at::Tensor& key_padding);

} // namespace trireme::context
