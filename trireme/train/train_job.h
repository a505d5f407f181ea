#pragma once

#include <trireme/train/commands.h>

namespace trireme::train {

/// `trireme train`: starts trireme-rank as the ranks of a training, restarts them after failures, if necessary on fewer
/// hosts with the same samples per step. Writes launch.json into the run folder. Returns the exit code.
int train_job(TrainCommand command);

} // namespace trireme::train
