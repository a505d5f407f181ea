#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/attention.h>

#include <ATen/core/Tensor.h>

namespace trireme::context {

/// attention() with Kind::ulysses, for checked arguments and at least two ranks.
at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks, const AttentionOptions& options,
                             const at::Tensor& key_padding);

/// Attention over tokens that are all here, contiguous in order: ATen's where that has no T x T matrix, else the ring's blocks.
at::Tensor local_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options, const at::Tensor& key_padding);

} // namespace trireme::context
