#pragma once

#include <trireme/train/commands.h>
#include <trireme/train/program.h>

namespace trireme::train {

/// `trireme train`: starts the ranks of a training, restarts them after failures, if necessary on fewer
/// hosts with the same samples per step. Writes launch.json into the run folder. Returns the exit code.
int train_job(TrainCommand command, const Program& program);

} // namespace trireme::train
