#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/layout.h>

#include <array>
#include <cstdint>

namespace trireme::plan {

/// Forward and backward of a block, as measured: nothing of it is recomputed or moved.
struct BlockTime {
  int64_t samples = 1;
  int64_t tensor = 1; ///< ranks that have it together; collectives are not measured
  double seconds = 0;
};

/// Makes the cost of a block (layer_costs()) what was measured of one sample, of several, and of a tensor rank's share:
/// by a factor on all of the cluster's speeds, and by seconds forward and backward each (layer_seconds). Of the latter,
/// what a tensor rank's share of a block has less of is for the weights (weight_seconds). `cluster` has no links yet.
/// What the job says of activations does not matter.
void fit_block(const std::array<BlockTime, 3>& measured, const Job& job, Cluster& cluster);

} // namespace trireme::plan
