#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

namespace trireme {

/// How this process relates to Slurm.
enum class SlurmPlace {
  /// Not a rank: a batch script and its children, a shell of salloc, or no Slurm at all.
  none,
  /// A rank: a task of a step, or a process that belongs to one.
  task,
  /// Typed in a shell that is a task (srun --pty bash); the variables of that task are not meant for it.
  shell
};

/// Reads SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_ID, SLURM_PTY_PORT and SLURM_TASK_PID. Pure except for its arguments. A
/// step with a terminal (SLURM_PTY_PORT) may be a shell or a program of several tasks. Only task 0 has the terminal; a
/// process there was typed unless `run_as_task` is true for it.
SlurmPlace slurm_place(const std::function<std::optional<std::string>(const std::string& name)>& lookup,
                       const std::function<bool(pid_t task)>& run_as_task);
/// The same for this process and its environment.
SlurmPlace slurm_place();

/// True if this process is the task, or a descendant that a script or a debugger started. A shell at a terminal gives
/// each command its own process group; a debugger does too, but traces it. False also when the task is not an ancestor
/// (a terminal that tmux kept). True if that process cannot be seen, as in a container with its own process numbers: a
/// rank that waits is better than one that trains alone unasked.
bool runs_as_task(pid_t task);

} // namespace trireme
