#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::comm {

/// Memory for a flat buffer on this host, not initialised. From 4 MiB on it begins on a huge page's boundary and
/// asks the kernel for huge pages: an optimizer step that streams through it is about a tenth faster.
at::Tensor allocate_host(int64_t numel, at::ScalarType type);

/// Bytes of memory that this process has and other ranks see: part of its resident set only as far as it has touched them. 0 where
/// nothing is shared. Cost: a system call.
int64_t own_shared_bytes();

} // namespace trireme::comm
