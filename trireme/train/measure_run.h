#pragma once

#include <trireme/train/commands.h>

#include <cstdint>
#include <optional>

namespace trireme::train {

/// Measurements of some steps of a run.
struct MeasuredRun {
  int64_t steps = 0;
  int64_t peak_rss_bytes = 0;               ///< of the largest rank
  std::optional<int64_t> device_peak_bytes; ///< the same on the device, where it trained on one
  std::optional<int64_t>
      comm_bytes;     ///< sent by rank 0 in one step, of a round the mean; absent: fewer steps than a round
  double step_ms = 0; ///< median
};

/// Trains that many steps in a scratch folder, without sample and intermediate checkpoints, and reads the
/// run's metrics. `round`: steps after which the traffic repeats. Errors: those of the run, with its exit
/// status.
MeasuredRun measure_run(const EstimateCommand& command, int64_t ranks, int64_t round);

} // namespace trireme::train
