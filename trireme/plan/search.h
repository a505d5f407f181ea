#pragma once

#include <trireme/plan/predict.h>

#include <cstdint>
#include <vector>

namespace trireme::plan {

struct SearchOptions {
  /// Layouts that are kept.
  int64_t best = 10;
  /// The largest micro-batch that is tried.
  int64_t most_micro_batch = 64;
};

struct Plan {
  /// The fastest layouts that fit, the fastest first. Their items have bytes alone; predict() says of one how they come
  /// about.
  std::vector<Prediction> best;
  /// For every division of the ranks among the axes without a layout that fits, the one that needs least memory; the
  /// smallest need first. Behind them those that cannot be built.
  std::vector<Prediction> refused;
  /// Layouts that the axes, ZeRO, micro-batches, recomputation and schedules make; whose memory was worked out; whose
  /// step was simulated.
  int64_t candidates = 0;
  int64_t estimated = 0;
  int64_t simulated = 0;
};

/// Looks through all layouts of all ranks: pipe x data x context x tensor, ZeRO 0 to 3, micro-batches, with and without
/// recomputation and sequence parallelism, 1f1b, interleaved (2 to 8 chunks) and zero-bubble. gpipe is not tried, 1f1b
/// is as fast with less memory; nor is naive. A layout that does not fit is tried with states, and at stage 3
/// parameters, on the hosts and in files, where the cluster describes these.
///
/// Layouts are taken in the order of the least time they could need; when that is more than what the best ones take,
/// the rest is left out, so the result is that of looking at all of them. Layouts whose states alone are too large are
/// not worked out.
Plan search(const Cluster& cluster, const Job& job, const SearchOptions& options = {});

} // namespace trireme::plan
