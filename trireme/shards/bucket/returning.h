#pragma once

#include <cstdint>

namespace trireme::bucket {

/// Number of parts of parameters that may be copied back from the device while the next one is used there
/// (ParameterShards::with_owned_on_device).
inline constexpr int64_t kReturningParts = 2;

} // namespace trireme::bucket
