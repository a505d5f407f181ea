#pragma once

#include <trireme/memory/activations/choice.h>
#include <trireme/plan/estimate/run.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::estimate {

/// The problem that "auto" solves on a stage.
struct StageProblem {
  /// Bytes, micro-batches, the budget and the allowed policies; without times and free space.
  activations::Problem problem;
  /// The first layer of each part.
  std::vector<int64_t> layers;
};
/// One for each stage.
std::vector<StageProblem> stage_problems(const Run& run);

/// Explains why no choice fits, by the choice that needs least.
activations::NoChoice why_no_choice(const Run& run, int64_t stage, const activations::Problem& problem,
                                    const activations::Choice& least);
/// The relative amount by which the estimate of kept activations may be too high (docs/memory.md).
inline constexpr double kKeptError = 0.05;

/// Returns why "auto" will certainly find no choice after the second step, even with unlimited files and host memory;
/// in a pipeline, for the stage that needs most. Nothing if it will find one, or has nothing to choose.
std::optional<activations::NoChoice> why_no_choice(const Run& run);

} // namespace trireme::estimate
