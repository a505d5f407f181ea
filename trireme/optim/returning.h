#pragma once

#include <cstdint>

namespace trireme::optim {

/// Number of buckets stepped by the host whose parameters may be copied to the device while it steps the next one. With
/// a delayed update all buckets may.
inline constexpr int64_t kReturningBuckets = 3;

} // namespace trireme::optim
