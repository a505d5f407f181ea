#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

/// Where one rank stands, as its environment tells it.
struct RankPlace {
  int rank = 0;
  int ranks = 1;
  /// Starts of the whole job before this one, and how many are allowed.
  int restarts = 0;
  int max_restarts = 0;
  /// Of the socket on 127.0.0.1 where the ranks meet.
  int port = 0;
  std::string run_id;
  /// The listening socket; -1 for all ranks but 0.
  int listen_fd = -1;
  /// Read end of a pipe that nobody writes to: it reads end-of-file once the launcher is gone.
  int lifeline_fd = -1;
  /// Columns of the terminal that shows this rank's stderr, 0 when none does.
  int terminal_columns = 0;
  /// Cores that the launcher may run on.
  int usable_cores = 1;
};

using Variables = std::vector<std::pair<std::string, std::string>>;

/// The whole environment of one rank, each as NAME=value:
/// - what the launcher itself has (`inherited`, NAME=value), then `extra`, each replacing the one before;
/// - RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK=0, MASTER_ADDR=127.0.0.1, MASTER_PORT,
///   TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, TORCHELASTIC_RUN_ID (as torchrun sets them);
/// - TRIREME_RUN_ID, TRIREME_LIFELINE_FD, TRIREME_TTY, rank 0: TRIREME_LISTEN_FD, after a restart: TRIREME_RESTART=1;
/// - OMP_NUM_THREADS = usable cores / ranks, at least 1, unless somebody set it.
/// What another launcher around this one said of the same things is taken out. CUDA_VISIBLE_DEVICES stays as it is.
std::vector<std::string> rank_environment(const RankPlace& place, const std::vector<std::string>& inherited,
                                          const Variables& extra);

/// This process's environment as NAME=value.
std::vector<std::string> own_environment();

/// 16 random hexadecimal digits.
std::string random_id();

} // namespace trireme::launch
