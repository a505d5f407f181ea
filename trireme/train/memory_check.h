#pragma once

#include <trireme/config/run_types.h>

#include <trireme/config/run_file.h>
#include <trireme/plan/estimate/machine_memory.h>
#include <trireme/plan/estimate/run.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::train {

/// Changes, as arguments of `trireme train`, with which a run fits.
struct Fitting {
  std::vector<std::string> arguments; ///< "--set engine.zero_optimization.stage=3", "-n 2"
  int64_t ranks = 0;
  int64_t peak_of_all = 0; ///< bytes, estimated; with too little on a GPU a rank's there
};

/// Searches the nearest configuration whose estimated peak fits `memory`. Prefers fewer changes, and then those that
/// keep results and speed. In this order: a higher ZeRO stage, smaller micro-batches with more accumulation, bf16,
/// more pipeline stages with recomputation, fewer ranks, states and parameters in files of the working directory.
/// For ranks on GPUs, with too little host memory, files come before those, activations are recomputed instead of
/// moved, and the number of ranks stays; with too little on the GPU, states and parameters on the host come before
/// files. Without arguments: none of those tried fits, and the peak is their smallest.
Fitting nearest_fitting(const std::filesystem::path& run_file, const std::vector<std::string>& overrides, int64_t ranks,
                        const estimate::MemoryAtHand& memory, const config::RunTypes& types);

/// Refuses a run that cannot fit, with the numbers and the nearest configuration that does. All its `ranks` are on this
/// host; `described`: describe_run() of them. Errors: InputError, as estimate::why_too_large() finds.
void check_memory(const estimate::Run& described, const std::filesystem::path& run_file,
                  const std::vector<std::string>& overrides, int64_t ranks, const estimate::MemoryAtHand& memory,
                  const config::RunTypes& types);

/// The same for the memory of a GPU, which only ranks can ask for: `device_bytes` are free for each rank. `here`: all
/// ranks are on this host, so that what is moved to it must fit too.
void check_device_memory(const estimate::Run& described, const std::filesystem::path& run_file,
                         const std::vector<std::string>& overrides, int64_t ranks, int64_t device_bytes, bool here,
                         const config::RunTypes& types);

} // namespace trireme::train
