#pragma once

#include <trireme/bucket/flat_layout.h>
#include <trireme/estimate/run.h>

#include <cstdint>

namespace trireme::estimate {

/// Elements that a rank of `stage` gathers in one step of ZeRO stage 3 when the order of units is known from the step before: every unit for
/// its forward and for its backward, less what is still there (zero::ParameterCoordinator). `layout`: layout_of(run, stage), or one of its two parts, whose elements are
/// counted.
int64_t gathered_elements(const Run& run, int64_t stage, const bucket::FlatLayout& layout);

/// The most parameters that a rank of `stage` has whole at a time of its units.
int64_t live_elements(const Run& run, int64_t stage);

} // namespace trireme::estimate
