#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/layout.h>

#include <array>
#include <cstdint>

namespace trireme::plan {

/// Measured seconds of a block's forward and backward, without recomputation and moves.
struct BlockTime {
  int64_t samples = 1;
  int64_t tensor = 1; ///< ranks that share it; collectives are not measured
  double seconds = 0;
};

/// Fits the cost of a block (layer_costs()) to measurements with one sample, with several, and of a tensor rank's
/// share. Fits a factor on all speeds of the cluster, and fixed seconds of forward and backward (layer_seconds). The
/// part of these that a tensor rank's share saves is for the weights (weight_seconds). `cluster` has no links yet.
/// Activation policies of the job do not matter.
void fit_block(const std::array<BlockTime, 3>& measured, const Job& job, Cluster& cluster);

} // namespace trireme::plan
