#pragma once

#include <trireme/comm/environment.h>
#include <trireme/comm/meeting_file.h>
#include <trireme/comm/store.h>
#include <trireme/store/server.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace trireme::comm {

/// The result of having met all other ranks.
struct Meeting {
  /// Rank 0's; first, so that it ends after what talks to it here.
  std::unique_ptr<store::Server> server;
  /// The secret that rank 0 has made, for as long as the store runs: a process that comes late is then told why it cannot join.
  PublishedMeeting note;
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

/// Meets the other ranks at a store.
///
/// Rank 0 runs it (store::Server), on the launcher's socket (TRIREME_LISTEN_FD) or on one of its own, which listens on
/// the one address that MASTER_ADDR gives, or on the loopback interface. Whoever connects proves that it knows the secret of
/// the job (store::Secret::from_environment()) and gets the same proof back. On the loopback interface rank 0 makes a secret where
/// none came, and leaves it in a file for the other ranks of this user (meeting_file.h). Over a network without a secret, and
/// under torchrun, whose agent runs c10d's TCPStore, anybody who speaks the protocol may join.
/// Cost: about five round trips a rank.
/// Errors: InputError when the port is in use or another job's, the secret is wrong, two processes claim one rank, or ranks
/// disagree on the world size; PeerError naming the ranks that have not come in time.
Meeting meet(const Environment& environment, std::chrono::milliseconds timeout);

} // namespace trireme::comm
