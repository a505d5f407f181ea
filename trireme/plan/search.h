#pragma once

#include <trireme/plan/predict.h>

#include <cstdint>
#include <vector>

namespace trireme::plan {

struct SearchOptions {
  /// Number of layouts to keep.
  int64_t best = 10;
  /// The largest micro-batch to try.
  int64_t most_micro_batch = 64;
};

struct Plan {
  /// The fastest layouts that fit, fastest first. Their items have only bytes; predict() also gives formulas.
  std::vector<Prediction> best;
  /// For every division of the ranks among the axes without a layout that fits: the layout that needs least memory, in
  /// ascending order. Then those that cannot be built.
  std::vector<Prediction> refused;
  /// Number of layouts: all combinations; those whose memory was computed; those whose step was simulated.
  int64_t candidates = 0;
  int64_t estimated = 0;
  int64_t simulated = 0;
};

/// Searches all layouts of all ranks: pipe x data x context x tensor, ZeRO 0 to 3, micro-batches, recomputation,
/// sequence parallelism, and the schedules 1f1b, interleaved (2 to 8 chunks) and zero-bubble. Not gpipe, because 1f1b
/// is as fast with less memory, and not naive. A layout that does not fit is tried again with states, and at stage 3
/// parameters, on hosts and in files, if the cluster describes these.
///
/// Layouts are visited in ascending order of a lower bound of their time, until that exceeds the times of the best
/// ones: the result is that of a full search. The memory of layouts whose states alone are too large is not computed.
Plan search(const Cluster& cluster, const Job& job, const SearchOptions& options = {});

} // namespace trireme::plan
