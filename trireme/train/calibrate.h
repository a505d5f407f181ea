#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/layout.h>
#include <trireme/train/program.h>

namespace trireme::train {

/// Measures this machine for a model: a block of it, matrix products and attention at its sizes and passes over memory,
/// on one rank per core (at most `ranks`). Then measures collectives of `ranks` ranks over each backend, fitted as
/// latency + bytes / bandwidth. Takes some seconds. Errors: Error when the ranks fail.
plan::Cluster calibrate(const plan::Job& job, int ranks, const Program& program);

} // namespace trireme::train
