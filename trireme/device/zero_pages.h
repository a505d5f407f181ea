#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Large zeros on the host that cost nothing before they are used: the system makes a page of zeros when it is first
// touched.
namespace trireme::device {

/// [numel] zeros on the CPU, for memory that is kept. From 4 MiB it is aligned to huge pages and requests them: an
/// optimizer step on it is about 10 % faster. Errors: std::bad_alloc.
at::Tensor zero_pages(int64_t numel, at::ScalarType type);

/// Sets a contiguous `memory` to zero. Shared memory of at least 4 MiB gives its pages back instead of being written.
void zero(const at::Tensor& memory);

} // namespace trireme::device
