#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::comm {

/// Memory for a flat buffer on this host, not initialised. From 4 MiB on it begins on a huge page's boundary and
/// asks the kernel for huge pages: an optimizer step that streams through it is about a tenth faster.
at::Tensor allocate_host(int64_t numel, at::ScalarType type);

/// Bytes of other ranks' memory that this process sees (shared memory) and that therefore count in its resident set too. Subtract
/// them from monitor::peak_rss_bytes() for what this rank adds to its host's use. Cost: milliseconds.
int64_t memory_of_peers_bytes();

} // namespace trireme::comm
