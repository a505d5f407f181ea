#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

/// The process's place in its job, as its environment describes it.
struct Environment {
  int rank = 0;
  int size = 1;
  /// Rank and number of ranks on this host; -1: not given, then found when connecting.
  int local_rank = -1;
  int local_size = -1;
  /// Address at which the ranks connect. Empty host: rank 0 writes its address into `meeting_file`.
  std::string host;
  int port = 0;
  std::string meeting_file;
  /// A listening socket that the launcher opened for rank 0.
  std::optional<int> listen_fd;
  /// The store at host:port is run by torchrun's agent, so that rank 0 is a client too.
  bool store_of_agent = false;
  /// The store at host:port is our own, of a process that outlives all ranks, so that rank 0 is a client too
  /// (horovod/elastic).
  bool store_elsewhere = false;
  /// Separates the keys of restarts and jobs that share one store.
  std::string key_prefix;
  /// Name of the job if its launcher gives one: the same on all ranks, different for every job.
  std::string job;
  /// The launcher that started this process, for messages: "torchrun", "Slurm", "" for none.
  std::string source;
  /// An assumption that the user may not have intended, "" for none.
  std::string note;
};

/// Returns a variable's text, or nullopt when it is unset or empty.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads the variables of, in this order: RANK and WORLD_SIZE (trireme launch, torchrun, Kubeflow's PyTorchJob,
/// plain shells), Open MPI, MVAPICH2, PMI and PMIx (MPICH, Intel MPI), Slurm, Kubeflow's PET_*, TF_CONFIG. The
/// first that is set gives rank and size; none: one rank. With every launcher MASTER_ADDR and MASTER_PORT give the
/// store's address. `trireme launch` leaves these two to the program and sets TRIREME_STORE_ADDR and
/// TRIREME_STORE_PORT instead. Without any of them: mpirun on one host: a file of the session; Slurm: the job's
/// first host (127.0.0.1 when it is the only one) and port 15000 + job id modulo 10000; PET_MASTER_*; TF_CONFIG:
/// the first task's host and port. Slurm counts only in job steps (SLURM_STEP_ID): a batch script, and commands
/// typed in a shell of srun --pty, are one rank. `run_as_task`: reports whether this process runs as the Slurm task
/// with a process number; default: base/slurm.h. Pure except for its arguments. Errors: InputError naming the
/// variable and what to set.
Environment read_environment(const Lookup& lookup, const std::function<bool(int task)>& run_as_task = {});

/// Host names of a Slurm list: "gpu[01-03,7],login" gives gpu01 gpu02 gpu03 gpu7 login.
/// Errors: InputError when brackets or ranges are broken.
std::vector<std::string> expand_host_list(const std::string& list);

} // namespace trireme::comm
