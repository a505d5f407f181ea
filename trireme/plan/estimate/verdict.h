#pragma once

#include <trireme/plan/estimate/machine_memory.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/moves.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::estimate {

/// Host memory that a run needs, and memory of GPUs.
struct Need {
  /// Name of what the lower bound counts: "model states and activations" of ranks on the CPU; for ranks on GPUs what
  /// they offload, or a model in one piece at the start.
  std::string what;
  int64_t least_of_a_rank = 0;
  int64_t least_of_all = 0;
  /// The estimated peak.
  int64_t peak_of_a_rank = 0;
  int64_t peak_of_all = 0;
  /// Of a rank on its GPU, 0 on the CPU: a lower bound, and the peak with what libraries and the allocator's rounding
  /// add.
  int64_t least_on_device = 0;
  int64_t peak_on_device = 0;
  /// Its largest uses, where the rank needs most: "parameters 25.7 GB, activations 2.55 GB".
  std::string on_device = {};
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

/// GPU memory of a rank beside its tensors: work areas of libraries of matrix products (32 MB on Hopper for each of two
/// streams), and the allocator's rounding and gaps as a share. The context is not counted: it exists when free memory
/// is read.
inline constexpr int64_t kDeviceLibraries = 64'000'000;
inline constexpr double kDeviceGaps = 1.05;

/// Address space of a process beyond its memory: libraries, stacks, arenas of malloc. Measured: 500 to 700 MB with one
/// rank, slightly more with several.
inline constexpr int64_t kAddressSpace = 700'000'000;

/// Why the run cannot fit, or empty: "model states and activations of 2 ranks need 80.0 GB, this machine has free 21.0
/// GB".
std::string why_too_large(const Need& need, const MemoryAtHand& memory, int64_t ranks);

/// The same for a rank's GPU: "a rank needs 51.4 GB of its GPU (parameters 25.7 GB, ...), which has free 31.0 GB".
std::string why_too_large_on_device(const Need& need, const MemoryAtHand& memory);

/// Whether the estimated peak fits.
bool fits(const Need& need, const MemoryAtHand& memory);

} // namespace trireme::estimate
