#pragma once

#include <trireme/launch/place.h>

#include <string>
#include <vector>

namespace trireme::launch {

/// A rank's place in the job, which its environment describes.
struct RankPlace {
  /// The same for all ranks of its place.
  Share share;
  int local_rank = 0;
  /// The place's name in the hostfile; empty for a job on one machine.
  std::string host;
  std::string run_id;
  /// The listening socket; -1 for all ranks but 0.
  int listen_fd = -1;
  /// Read end of a pipe without data: end-of-file means that the launcher has ended.
  int lifeline_fd = -1;
  /// Holds the secret of the job as hexadecimal digits.
  int secret_fd = -1;
  /// Cores that the launcher may run on.
  int usable_cores = 1;
};

/// Spins of libgomp's waiting threads before they sleep: some microseconds. The default is milliseconds:
/// if another process needs the core, a step that waits for a thread without a core takes ten times as
/// long.
inline constexpr const char* kSpinCount = "2000";

/// The environment of one rank, each as NAME=value:
/// - the launcher's own environment (`inherited`, NAME=value), then `extra`; later values replace earlier ones;
/// - RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT,
///   TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, TORCHELASTIC_RUN_ID (as torchrun does). No process listens
///   on MASTER_PORT: a program's own rank 0 can;
/// - TRIREME_STORE_ADDR and TRIREME_STORE_PORT: where Trireme's own ranks connect;
/// - TRIREME_RUN_ID, TRIREME_LIFELINE_FD, TRIREME_SECRET_FD, TRIREME_TTY, rank 0: TRIREME_LISTEN_FD, after a restart:
///   TRIREME_RESTART=1, in a job on several hosts: TRIREME_HOST;
/// - OMP_NUM_THREADS = usable cores / (ranks of the place and their neighbours), at least 1, unless it is set;
/// - the variables of the share;
/// - GOMP_SPINCOUNT = kSpinCount, unless it or OMP_WAIT_POLICY is set.
/// Variables of an outer launcher with the same purpose are removed. CUDA_VISIBLE_DEVICES is unchanged.
std::vector<std::string> rank_environment(const RankPlace& place, const std::vector<std::string>& inherited,
                                          const Variables& extra);

/// The variables of `inherited` for other machines: TRIREME_*, OMP_*, GOMP_*, MKL_*, KMP_*, GLOO_*, NCCL_*, TORCH_*,
/// LD_LIBRARY_PATH, without those that a launcher sets for its own processes.
Variables portable_variables(const std::vector<std::string>& inherited);

/// This process's environment as NAME=value.
std::vector<std::string> own_environment();

/// 16 random hexadecimal digits.
std::string random_id();

} // namespace trireme::launch
