#pragma once

#include <trireme/data/batch.h>

#include <cstdint>

namespace trireme::data {

/// Counts the targets of a batch that are not kIgnoredTarget. If there is none, the first target becomes class 0, so
/// that a mean over those that count is a number; the weight of its loss must be 0. Cost: one read of the targets,
/// which are on the host.
int64_t count_targets(Batch& batch);

} // namespace trireme::data
