#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/estimate/moves.h>

namespace trireme::plan {

/// Seconds in which activations of a micro-batch leave in forward, and come back in backward: over a card's link and,
/// of files, to the disk.
struct ActivationTimes {
  double leave_over_link = 0;
  double leave_to_files = 0;
  double back_over_link = 0;
  double back_from_files = 0;
  /// Of forward, and again of backward, by the computing threads themselves: ranks on the CPU, from activations to a
  /// file's buffers.
  double copied = 0;

  ActivationTimes& operator+=(const ActivationTimes& other);
};

/// Of one layer and one micro-batch, 0 over a link or to a disk that the cluster does not describe. `bytes`: what
/// leaves.
ActivationTimes activation_times(const Cluster& cluster, int64_t bytes, activations::Way way);

/// What offload costs a rank in a step: seconds of each link by itself. All ranks of a host move at the same time and
/// share its disk and its cores.
struct MoveTimes {
  /// Gradients on their way to the host; of those, to be added to, back to the card; into files and out of them, in
  /// every micro-batch's backward; in a pipeline, where they go there once, beside the optimizer: of `writes`.
  double gradients_up = 0;
  double gradients_down = 0;
  double gradients_in_files = 0;
  bool in_every_micro_batch = false;
  /// Units that layers are about to use: from the host to a card, and from files.
  double units_over_link = 0;
  double units_from_files = 0;
  /// Of the optimizer: reads, writes, its pass over what is moved, and stepped parameters on their way to a card; or
  /// shards that the card steps, to it and back at the same time.
  double reads = 0;
  double writes = 0;
  double pass = 0;
  double returns = 0;
  /// Buckets that are stepped one behind the other: on the host, and shards on the card.
  int64_t buckets = 0;
  int64_t shards = 0;

  /// The longest of what a forward waits for, or a backward with its gradients, if the step has so many of each and
  /// each moves these activations. What has the same direction of a link, or the same disk, adds up.
  double forward(double passes, const ActivationTimes& activations = {}) const;
  double backward(double passes, const ActivationTimes& activations = {}) const;
  /// All of the optimizer's. What is read ahead and written behind (together: one disk), the pass and the returns go on
  /// at the same time: the longest counts, and of the rest a bucket's.
  double optimizer() const;
};

MoveTimes move_times(const Cluster& cluster, const estimate::Run& run, const bucket::FlatLayout& layout,
                     const estimate::StageMoves& moves);

} // namespace trireme::plan
