#pragma once

#include <trireme/comm/group.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::comm {

struct Environment;

struct WorldOptions {
  /// Backend for tensors on the host. "auto" selects, for each group, the first of these that all members can use: shm
  /// (ranks of one host), shm+gloo (several hosts with the same number of ranks, above one), gloo. Tensors on a CUDA
  /// GPU use NCCL if it is available ("nccl" requires it). Those of other devices, and all with "staged", go through
  /// the host ("staged"). TRIREME_BACKEND overrides "auto".
  std::string backend = "auto";
  /// Ends a collective or message that takes this long, for any reason; its error names the ranks that did not join.
  /// Also limits how long ranks wait for each other at the start. Unset: 30 minutes while late ranks live, 10 on a GPU,
  /// less if no rank will join (see warn_after), 60 seconds at the start. TRIREME_TIMEOUT (seconds) sets it if this
  /// does not.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// Checks a collective or message that takes this long, 60 seconds unless set. A warning names late ranks that live.
  /// If no rank will complete it (one has ended, is stopped, or ranks wait for each other), it ends then, unless
  /// `timeout` is set. TRIREME_WARN_AFTER (seconds) sets it if this does not.
  std::optional<std::chrono::milliseconds> warn_after = std::nullopt;
};

/// `options` with this time-out, unless they or TRIREME_TIMEOUT set one.
WorldOptions with_timeout(WorldOptions options, std::chrono::milliseconds timeout);

/// All ranks of the job. Created once near the top of main() and destroyed before
/// main() returns: the destructor ends every group made from it and joins all
/// communication threads, so a process never dies in a static destructor. It waits until
/// the other ranks end theirs, so that no message to them is lost, unless one has failed.
/// With more than one rank connect() ignores SIGPIPE (if it had its default action):
/// a dying peer must become a PeerError.
class World {
 public:
  /// Finds rank, size and the store's address in the environment (trireme's launcher,
  /// torchrun, Kubeflow, Open MPI/PMI, Slurm, TF_CONFIG; none of them = one rank), connects to
  /// the others and opens the world group. Ranks of one host share its cores as threads,
  /// unless OMP_NUM_THREADS is set. Errors: InputError for contradicting or missing variables
  /// (which, and what to set), PeerError when ranks do not connect in time (which are
  /// missing).
  static World connect(const WorldOptions& options = {});
  /// The same in an environment from the caller.
  static World connect(const Environment& environment, const WorldOptions& options = {});

  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const;
  int size() const;
  /// Rank and number of ranks on this host.
  int local_rank() const;
  int local_size() const;

  /// The device of this rank, device::choose("auto"): the GPU with its number on its host if libtorch sees GPUs, else
  /// the CPU; TRIREME_DEVICE decides otherwise. Errors: those of device::choose().
  at::Device device() const;

  /// The group of all ranks, named "world".
  const Group& group() const;
  /// The same as group().subgroup().
  Group subgroup(const std::vector<int>& ranks, const std::string& name);

  /// Ends all groups. Idempotent; the destructor calls it.
  void close();

 private:
  class Impl;
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace trireme::comm
