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

/// The result of meet().
struct Meeting {
  /// On rank 0; first, so that it is destroyed after the connections to it.
  std::unique_ptr<store::Server> server;
  /// The secret that rank 0 made, kept while the store runs: a late process then gets an error with the reason why it
  /// cannot join.
  PublishedMeeting note;
  Store store;
  /// A second connection, for the watch thread.
  Store watch_store;
  /// World rank whose process runs the store, -1 if no rank does.
  int store_host = 0;
  int local_rank = 0;
  int local_size = 1;
  /// Number of the host of each world rank: equal for ranks of one machine.
  std::vector<int> hosts;
  /// This host's address as seen by the others; a loopback address when all ranks share it.
  std::string address;
};

/// Connects to the other ranks through a store.
///
/// Rank 0 runs it (store::Server), on the launcher's socket (TRIREME_LISTEN_FD) or on its own, which listens on the
/// address in MASTER_ADDR or on the loopback interface. A client proves that it knows the secret of the job
/// (store::Secret::from_environment()) and gets the same proof back. On the loopback interface rank 0 makes a secret if
/// none is given, and writes it to a file for the other ranks of this user (meeting_file.h). Any program that speaks
/// the protocol may join over a network without a secret, and under torchrun, whose agent runs c10d's TCPStore. Cost:
/// about five round trips per rank. Errors: InputError when the port is in use or another job's, the secret is wrong,
/// two processes claim one rank, or ranks disagree on the world size; PeerError naming the ranks that did not connect
/// in time.
Meeting meet(const Environment& environment, std::chrono::milliseconds timeout);

} // namespace trireme::comm
