#pragma once

#include <trireme/estimate/machine_memory.h>
#include <trireme/estimate/memory.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// What a run needs of the memory at hand.
struct Need {
  /// Model states and activations: less than this it cannot be.
  int64_t least_of_a_rank = 0;
  int64_t least_of_all = 0;
  /// The estimated peak.
  int64_t peak_of_a_rank = 0;
  int64_t peak_of_all = 0;
};

/// Memory that all ranks need, with data_ranks on every stage.
Need need_of(const std::vector<StageMemory>& stages, int64_t data_ranks);

/// A run is refused when model states and activations are more than this times the memory at hand: then the estimate would have to be
/// wrong by so much for the run to fit.
inline constexpr double kMargin = 1.1;

/// Empty, or why the run cannot fit: "model states and activations of 2 ranks need 80.0 GB, this machine has free 21.0 GB".
std::string why_too_large(const Need& need, const MemoryAtHand& memory, int64_t ranks);

/// Whether the estimated peak fits.
bool fits(const Need& need, const MemoryAtHand& memory);

} // namespace trireme::estimate
