#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/context/attention.h>

#include <ATen/core/Tensor.h>

namespace trireme::context {

/// attention() with Kind::ring, for checked arguments; in a group of one the same function without communication.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const comm::Group& ranks,
                          const AttentionOptions& options, const at::Tensor& key_padding);

} // namespace trireme::context
