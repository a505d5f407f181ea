#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::comm {

/// Memory for a flat buffer on this host, not initialised. From 4 MiB on it begins on a huge page's boundary and
/// asks the kernel for huge pages: an optimizer step that streams through it is about a tenth faster.
at::Tensor allocate_host(int64_t numel, at::ScalarType type);

} // namespace trireme::comm
