#pragma once

#include <cstdint>

namespace trireme::optim {

/// Buckets that the host has stepped and whose parameters may be on their way to the device while it steps the next
/// one; with a delayed update all are.
inline constexpr int64_t kReturningBuckets = 3;

} // namespace trireme::optim
