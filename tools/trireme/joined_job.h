#pragma once

#include "commands.h"

#include <optional>
#include <string>

namespace trireme::tools {

/// A job whose ranks another launcher starts: each of its processes is this command.
struct JoinedJob {
  std::string launcher;
  int64_t ranks = 0;
  int64_t rank = 0;
};

/// Says by the environment whether srun, mpirun, torchrun or Kubeflow's operator has started this process as one of
/// several ranks. A batch script of Slurm is none, and neither is a job of one rank: there `trireme train` starts ranks
/// itself. Errors: InputError where a number is none.
std::optional<JoinedJob> joined_job();

/// Refuses what only a launcher can do. Errors: InputError with the launcher's own way to do it.
void check_joined(const TrainCommand& command, const JoinedJob& job);

} // namespace trireme::tools
