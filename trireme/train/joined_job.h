#pragma once

#include <trireme/train/commands.h>

#include <optional>
#include <string>

namespace trireme::train {

/// A job that another launcher starts: each of its processes runs this command.
struct JoinedJob {
  std::string launcher;
  int64_t ranks = 0;
  int64_t rank = 0;
};

/// Detects by the environment whether srun, mpirun, torchrun or Kubeflow's operator has started this process as one of
/// several ranks. Returns nothing in a batch script of Slurm and in a job of one rank: there `trireme train` starts
/// ranks itself. Errors: InputError for a variable that is not a number.
std::optional<JoinedJob> joined_job();

/// Refuses options that only trireme's launcher supports. Errors: InputError with the equivalent of the other launcher.
void check_joined(const TrainCommand& command, const JoinedJob& job);

} // namespace trireme::train
