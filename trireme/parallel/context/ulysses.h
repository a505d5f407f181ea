#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/attention.h>

#include <ATen/core/Tensor.h>

namespace trireme::context {

/// attention() with Kind::ulysses, for checked arguments and at least two ranks.
at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                             const AttentionOptions& options, const at::Tensor& key_padding);

/// Attention over tokens that are all here, in order: the ring's block where that is fused/'s kernel or ATen's
/// attention has a T x T matrix, else ATen's.
at::Tensor local_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionOptions& options, const at::Tensor& key_padding);

} // namespace trireme::context
