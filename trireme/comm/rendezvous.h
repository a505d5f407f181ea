#pragma once

#include <trireme/comm/environment.h>
#include <trireme/comm/store.h>

#include <chrono>
#include <string>
#include <vector>

namespace trireme::comm {

/// The result of having met all other ranks.
struct Meeting {
  Store store;
  /// A second connection, for the watch thread.
  Store watch_store;
  /// World rank whose process runs the store, -1 when it is none of the ranks.
  int store_host = 0;
  int local_rank = 0;
  int local_size = 1;
  /// Number of the host of each world rank: equal for ranks of one machine.
  std::vector<int> hosts;
  /// This host's address as seen by the others; a loopback address when all ranks share it.
  std::string address;
};

/// Meets the other ranks over a c10d TCPStore.
///
/// Rank 0 runs the store, on the launcher's socket (TRIREME_LISTEN_FD) or on one of its own that
/// listens on the loopback interface only when all ranks are on this host; under torchrun the
/// agent runs it. Cost: about five round trips a rank.
/// Errors: InputError when the port is in use, two processes claim one rank, or ranks disagree on
/// the world size; PeerError naming the ranks that have not come in time.
Meeting meet(const Environment& environment, std::chrono::milliseconds timeout);

} // namespace trireme::comm
