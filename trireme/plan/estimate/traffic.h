#pragma once

#include <trireme/plan/estimate/memory.h>

#include <cstdint>
#include <vector>

namespace trireme::estimate {

/// Bytes that the first data-parallel rank of a stage sends per step. Exceptions: a pipeline's first step also sends
/// shapes, and at stage 3 the first two steps may differ in prefetched units. With parameter_averaging: the mean over
/// the steps of a round, in which only the last uses the data axis.
struct StageTraffic {
  int64_t stage = 0;
  /// By collective; a run's metrics count their sum as comm_bytes.
  std::vector<Item> items;
  /// Sums of gradients of parameters that pipeline stages share; not in comm_bytes.
  int64_t tied_bytes = 0;
  /// Exchange of step times, every few steps; not in `items`.
  int64_t step_time_bytes = 0;

  int64_t bytes() const;
};

/// If some steps send compressed messages (Run::compression): a plain step or a compressed one.
enum class Step { plain, compressed };

/// Computes to the byte what a rank of each pipeline stage sends.
std::vector<StageTraffic> traffic_of(const Run& run, Step step = Step::plain);
std::vector<StageTraffic> traffic_of(const StageLayouts& stages, Step step = Step::plain);

} // namespace trireme::estimate
