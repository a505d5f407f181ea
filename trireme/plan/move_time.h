#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/estimate/moves.h>

namespace trireme::plan {

/// Seconds to move activations of a micro-batch out in forward and back in backward: over a GPU's link and, for files,
/// to the disk.
struct ActivationTimes {
  double leave_over_link = 0;
  double leave_to_files = 0;
  double back_over_link = 0;
  double back_from_files = 0;
  /// In forward, and again in backward, spent by the computing threads of ranks on the CPU: copies of activations to
  /// buffers of files.
  double copied = 0;

  ActivationTimes& operator+=(const ActivationTimes& other);
};

/// For one layer and one micro-batch; 0 for a link or disk that the cluster does not describe. `bytes`: what is moved
/// out.
ActivationTimes activation_times(const Cluster& cluster, int64_t bytes, activations::Way way);

/// Seconds of offload per step of a rank, for each link alone. All ranks of a host move at the same time and share its
/// disk and cores.
struct MoveTimes {
  /// Gradients: to the host; back to the GPU for accumulation; into and out of files, in the backward of every
  /// micro-batch. A pipeline writes them once, beside the optimizer; that is in `writes`.
  double gradients_up = 0;
  double gradients_down = 0;
  double gradients_in_files = 0;
  bool in_every_micro_batch = false;
  /// Units that layers are about to use: from the host to a GPU, and from files.
  double units_over_link = 0;
  double units_from_files = 0;
  /// The optimizer's: reads, writes, its pass over what is offloaded, and stepped parameters to a GPU; or, for shards
  /// that the GPU steps, both directions at the same time.
  double reads = 0;
  double writes = 0;
  double pass = 0;
  double returns = 0;
  /// Buckets stepped one after the other: on the host, and shards on the GPU.
  int64_t buckets = 0;
  int64_t shards = 0;

  /// Seconds that a forward, or a backward with its gradients, waits for moves, in a step with this many passes that
  /// each move these activations. Moves in one direction of a link, or on one disk, add up; the longest counts.
  double forward(double passes, const ActivationTimes& activations = {}) const;
  double backward(double passes, const ActivationTimes& activations = {}) const;
  /// Seconds of the optimizer. Reading ahead and writing behind (which share a disk), the pass and the returns overlap:
  /// the longest counts, and one bucket of each of the others.
  double optimizer() const;
};

MoveTimes move_times(const Cluster& cluster, const estimate::Run& run, const bucket::FlatLayout& layout,
                     const estimate::StageMoves& moves);

} // namespace trireme::plan
