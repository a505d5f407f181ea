#pragma once

#include <trireme/bucket/flat_layout.h>
#include <trireme/estimate/run.h>

#include <cstdint>

namespace trireme::estimate {

/// Elements that one step of ZeRO stage 3 gathers when the order of units is known from the step before: every unit for its forward and
/// for its backward, less what is still there (zero::ParameterCoordinator). In a pipeline every unit of `layout` once.
int64_t gathered_elements(const Run& run, const bucket::FlatLayout& layout);

} // namespace trireme::estimate
