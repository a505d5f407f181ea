#pragma once

#include "commands.h"

#include <trireme/config/run_file.h>
#include <trireme/estimate/machine_memory.h>
#include <trireme/estimate/run.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::tools {

/// Changes to a run, as arguments of `trireme train`, with which it fits.
struct Fitting {
  std::vector<std::string> arguments; ///< "--set engine.zero_optimization.stage=3", "-n 2"
  int64_t ranks = 0;
  int64_t peak_of_all = 0; ///< bytes, estimated
};

/// Looks for the nearest configuration whose estimated peak fits `memory`: one change before two, and of changes first
/// those that leave results and speed as they are: a higher ZeRO stage, smaller micro-batches with more accumulation,
/// bf16, more pipeline stages with recomputation, fewer ranks, states and parameters in files of the working directory.
/// Of ranks on devices, where it is the host's memory that is short, files come before those, activations are
/// recomputed instead of moved, and ranks are as many. Without arguments: none of those tried fits, and the peak is the
/// smallest of theirs.
Fitting nearest_fitting(const std::filesystem::path& run_file, const std::vector<std::string>& overrides, int64_t ranks,
                        const estimate::MemoryAtHand& memory);

/// Refuses a run that cannot fit, with the numbers and the nearest configuration that does. All its `ranks` are on this
/// host; `described`: what describe_run() says of them. Errors: InputError, as estimate::why_too_large() finds.
void check_memory(const estimate::Run& described, const std::filesystem::path& run_file,
                  const std::vector<std::string>& overrides, int64_t ranks, const estimate::MemoryAtHand& memory);

} // namespace trireme::tools
