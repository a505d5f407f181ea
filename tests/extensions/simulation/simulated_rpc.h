#pragma once

#include <trireme/extensions/server/rpc/rpc.h>

#include <tests/simulation/simulator.h>

#include <string>

namespace trireme::simulation {

/// Servers and clients of rpc at addresses "sim://NAME", in the simulator whose run() is on the thread.
///
/// A client's connection belongs to the process that connects, a server to the one that serves: with their end what
/// they have sent arrives or is lost. Who connects where nobody serves waits, as at a socket that outlives its server.
/// Bodies are copied when they are sent. Make one for each simulator.
class SimulatedRpc {
 public:
  explicit SimulatedRpc(Simulator& simulator);
  ~SimulatedRpc();
  SimulatedRpc(const SimulatedRpc&) = delete;
  SimulatedRpc& operator=(const SimulatedRpc&) = delete;

  /// The network between two processes is cut, or mended: what is sent waits meanwhile.
  void set_silent(int client, int server, bool silent);
  /// The connections between two processes break.
  void break_connections(int client, int server);

  struct Host;

 private:
  std::shared_ptr<Host> host_;
};

} // namespace trireme::simulation
