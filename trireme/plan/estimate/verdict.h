#pragma once

#include <trireme/plan/estimate/machine_memory.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/moves.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// What a run needs of the host's memory.
struct Need {
  /// Less than this it cannot be: `what`, "model states and activations" of ranks that train there. Of ranks on devices
  /// what they have moved there, or a model in one piece at the start.
  std::string what;
  int64_t least_of_a_rank = 0;
  int64_t least_of_all = 0;
  /// The estimated peak.
  int64_t peak_of_a_rank = 0;
  int64_t peak_of_all = 0;
};

/// Memory that all ranks need, with data_ranks on every stage.
Need need_of(const std::vector<StageMemory>& stages, int64_t data_ranks);

/// The same of ranks on devices: what is on their hosts, libtorch and data included.
Need host_need_of(const std::vector<StageMemory>& stages, const std::vector<StageMoves>& moves, int64_t data_ranks);

/// One of the two.
Need need_of(const Run& run);

/// A run is refused when what it needs at least is more than this times the memory at hand: then the estimate would
/// have to be wrong by so much for the run to fit.
inline constexpr double kMargin = 1.1;

/// What malloc keeps for later of what is freed, of the estimated peak; up to 0.66 were seen (docs/plan.md).
inline constexpr double kKept = 0.7;

/// Whether ranks on the CPU may run out of memory although their estimate fits, unless malloc gives back at once what
/// they free.
bool is_tight(const Need& need, const MemoryAtHand& memory);

/// Address space that a process has beside its memory, for the limit of that: libraries, stacks, arenas of malloc.
/// Measured: 500 to 700 MB of one rank, a little more of several.
inline constexpr int64_t kAddressSpace = 700'000'000;

/// Empty, or why the run cannot fit: "model states and activations of 2 ranks need 80.0 GB, this machine has free 21.0
/// GB".
std::string why_too_large(const Need& need, const MemoryAtHand& memory, int64_t ranks);

/// Whether the estimated peak fits.
bool fits(const Need& need, const MemoryAtHand& memory);

} // namespace trireme::estimate
