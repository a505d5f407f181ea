#pragma once

#include <trireme/plan/choose_ways.h>
#include <trireme/plan/predict.h>

namespace trireme::plan {

/// Adds to `out` what a rank, a host and its files hold of a layout, and why they have no room for it (`refused`).
/// Fills in what `needs` has of memory and moves. Of a choice of activations that nobody has made yet: what the first
/// two steps, which measure, move.
void add_memory(const Cluster& cluster, Needs& needs, Prediction& out);

} // namespace trireme::plan
