#pragma once

#include <trireme/train/commands.h>

#include <trireme/config/run_file.h>

#include <filesystem>
#include <vector>

namespace trireme::train {

/// Initial weights that a run file names and that are not there.
struct AbsentWeights {
  std::filesystem::path path;
  const char* key; ///< in "model"
};
std::vector<AbsentWeights> absent_weights(const config::RunConfig& run);

/// Reads the run file of a training. `has_weights`: they come from a checkpoint, so what model.init_from and
/// model.adapter name may be absent. Errors: as config::read_run_file().
config::RunConfig read_run_to_train(const TrainCommand& command, const config::RunTypes& types, bool has_weights);

/// Whether a training asks for a checkpoint to begin with: `--resume`, or a restart.
bool continues(const TrainCommand& command);

} // namespace trireme::train
