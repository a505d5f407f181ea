#pragma once

#include <trireme/plan/estimate/memory.h>

#include <cstdint>
#include <vector>

namespace trireme::estimate {

/// What the first data-parallel rank of a stage sends in one step: in every one, but a pipeline's first step also
/// announces shapes, and at stage 3 the first two may differ by what is gathered ahead. Of replicas that step by
/// themselves (parameter_averaging) the mean over the steps of a round: in all but the last of them the data axis sends
/// nothing.
struct StageTraffic {
  int64_t stage = 0;
  /// Collective by collective; their sum is what a run's metrics count as comm_bytes.
  std::vector<Item> items;
  /// Sums of gradients that pipeline stages share, between these stages: not in comm_bytes.
  int64_t tied_bytes = 0;
  /// Every so many steps ranks exchange their step times: not in the items.
  int64_t step_time_bytes = 0;

  int64_t bytes() const;
};

/// Where messages are compressed in some steps (Run::compression): one of the others, or one of these.
enum class Step { plain, compressed };

/// Says what a rank of each pipeline stage sends, to the byte.
std::vector<StageTraffic> traffic_of(const Run& run, Step step = Step::plain);
std::vector<StageTraffic> traffic_of(const StageLayouts& stages, Step step = Step::plain);

} // namespace trireme::estimate
