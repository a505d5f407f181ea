#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme::monitor {

/// One rank's time of one step by phase, in seconds.
struct StepShare {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double optimizer = 0;
  /// Communication that was not hidden: nearly zero on a late rank.
  double wait = 0;
  double total = 0;
};

/// Ranks exchange the times of so many steps at once.
inline constexpr int kStepsOfExchange = 8;

/// A rank that the others wait for.
struct Straggler {
  /// Index into find_straggler()'s argument.
  int rank = 0;
  /// Share of the steps in which it was the last to arrive.
  double last_share = 0;
  /// Its own time per step relative to the fastest rank's.
  double slowdown = 1;
  /// The phase in which it loses most: "data", "forward", "backward", "optimizer" or "elsewhere", and its speed there
  /// relative to the fastest rank's.
  std::string phase;
  double speed = 1;
  int steps = 0;
};

/// Blames lateness, not duration: of ranks that synchronize in every step, the one that waits least arrives last.
///
/// Names a rank that was last in at least 80 % of the steps. Its median time without waiting must also be 1.3 times
/// that of the fastest rank and 1 ms above it. `by_rank`: the same steps of every rank. Pure.
std::optional<Straggler> find_straggler(const std::vector<std::vector<StepShare>>& by_rank);

/// `rank 3 arrives last in 94 % of the last 16 steps: 0.48x of the fastest in backward, 1.8 times its time for a step`
std::string describe(const Straggler& straggler, int world_rank);

} // namespace trireme::monitor
