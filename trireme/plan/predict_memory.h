#pragma once

#include <trireme/plan/choose_ways.h>
#include <trireme/plan/predict.h>

namespace trireme::plan {

/// Adds to `out` what a rank, a host and its files hold with a layout, and why that does not fit (`refused`). Sets
/// memory and moves of `needs`. If activation policies are still to be chosen: the moves of the first two steps, which
/// measure.
void add_memory(const Cluster& cluster, Needs& needs, Prediction& out);

} // namespace trireme::plan
