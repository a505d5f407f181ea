#pragma once

#include <trireme/plan/estimate/machine_memory.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/moves.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// Host memory that a run needs.
struct Need {
  /// Name of what the lower bound counts: "model states and activations" of ranks on the CPU; for ranks on GPUs what
  /// they offload, or a model in one piece at the start.
  std::string what;
  int64_t least_of_a_rank = 0;
  int64_t least_of_all = 0;
  /// The estimated peak.
  int64_t peak_of_a_rank = 0;
  int64_t peak_of_all = 0;
};

/// Memory of all ranks, with data_ranks on every stage.
Need need_of(const std::vector<StageMemory>& stages, int64_t data_ranks);

/// The same for ranks on GPUs: what is on their hosts, with libtorch and data.
Need host_need_of(const std::vector<StageMemory>& stages, const std::vector<StageMoves>& moves, int64_t data_ranks);

/// One of the two, by where the ranks are.
Need need_of(const Run& run);

/// A run is refused if its lower bound exceeds this multiple of the available memory: the estimate would have to be
/// wrong by that much for the run to fit.
inline constexpr double kMargin = 1.1;

/// Address space of a process beyond its memory: libraries, stacks, arenas of malloc. Measured: 500 to 700 MB with one
/// rank, slightly more with several.
inline constexpr int64_t kAddressSpace = 700'000'000;

/// Why the run cannot fit, or empty: "model states and activations of 2 ranks need 80.0 GB, this machine has free 21.0
/// GB".
std::string why_too_large(const Need& need, const MemoryAtHand& memory, int64_t ranks);

/// Whether the estimated peak fits.
bool fits(const Need& need, const MemoryAtHand& memory);

} // namespace trireme::estimate
