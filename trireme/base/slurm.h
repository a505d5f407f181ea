#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

namespace trireme {

/// What Slurm has to do with this process.
enum class SlurmPlace {
  /// Nothing: a batch script and what it starts, a shell of salloc, or no Slurm at all.
  none,
  /// It is a task of a step, or belongs to one: a rank.
  task,
  /// Somebody typed it in a shell that is a task (srun --pty bash). The variables of that task are not for it.
  shell
};

/// Reads SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_ID, SLURM_PTY_PORT and SLURM_TASK_PID. Pure except for its arguments.
/// A step with a terminal (SLURM_PTY_PORT) may be a shell or a program of several tasks. Only task 0 has the terminal,
/// and only what does not `run_as_task` there was typed.
SlurmPlace slurm_place(const std::function<std::optional<std::string>(const std::string& name)>& lookup,
                       const std::function<bool(pid_t task)>& run_as_task);
/// The same of this process and its environment.
SlurmPlace slurm_place();

/// Whether this process is the task, or a program below it that a script or a debugger started: a shell at a terminal
/// gives each command a process group of its own. A debugger does too, but traces it. False also when the task is not
/// above this process (a terminal that tmux kept). True when no such process can be seen: in a container with numbers
/// of its own nothing is known, and a rank that trains alone unasked would be worse than one that waits.
bool runs_as_task(pid_t task);

} // namespace trireme
