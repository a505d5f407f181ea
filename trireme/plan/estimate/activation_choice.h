#pragma once

#include <trireme/memory/activations/choice.h>
#include <trireme/plan/estimate/run.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trireme::estimate {

/// What "auto" has to choose from on a stage.
struct StageProblem {
  /// Bytes, micro-batches, the budget and the ways that a rank allows; neither times nor room.
  activations::Problem problem;
  /// The first layer of each part.
  std::vector<int64_t> layers;
};
/// One for each stage.
std::vector<StageProblem> stage_problems(const Run& run);

/// Why none fits, by the choice that needs least.
activations::NoChoice why_no_choice(const Run& run, int64_t stage, const activations::Problem& problem,
                                    const activations::Choice& least);
/// By how much what layers keep may be estimated too high (docs/memory.md).
inline constexpr double kKeptError = 0.05;

/// Whether ranks with "auto" will surely find none after their second step, however much room files and hosts have. Of
/// a pipeline the stage that needs most. Nothing: they will find one, or choose nothing.
std::optional<activations::NoChoice> why_no_choice(const Run& run);

} // namespace trireme::estimate
