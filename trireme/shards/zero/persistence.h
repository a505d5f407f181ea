#pragma once

#include <trireme/shards/zero/options.h>

#include <cstdint>
#include <vector>

namespace trireme::zero {

/// Which parameters with these numbers of elements stay whole on every rank at stage 3: the smallest of those below
/// param_persistence_threshold, as long as they are no more than model_persistence_threshold together.
std::vector<bool> are_persistent(const std::vector<int64_t>& sizes, const ZeroOptions& options);

} // namespace trireme::zero
