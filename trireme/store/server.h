#pragma once

#include <trireme/store/secret.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace trireme::store {

struct ServerOptions {
  Secret secret = {};
  /// The job's name, the same for all of its clients; tells its store from that of another job on the same port.
  std::string job = {};
  /// A connection that has not proved within this time that it belongs to the job is closed.
  std::chrono::milliseconds stranger_patience{5000};
  /// As many connections may be about to prove it at once; then the oldest goes.
  size_t most_strangers = 256;
};

/// A key-value store that the processes of one job meet at.
///
/// One thread serves all connections and waits for none of them. Until a connection has proved that it knows the secret
/// (handshake.h) it is a stranger: it may send 64 bytes, of which the first wrong one ends it. Afterwards a message may
/// have 16 MiB; a longer one, or one that is no request, ends the connection. Strangers turned away are counted
/// and told in a warning, at most one a second. Keys are lost with the server.
/// Cost: one thread that sleeps, one descriptor a connection, about 20 us of one core a request.
class Server {
 public:
  /// Serves on a listening socket, which it owns from now on. Errors: Error when the system refuses a thread or descriptor.
  explicit Server(int listening, ServerOptions options = {});
  /// Closes all connections.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Connections turned away so far.
  int64_t refused() const;
  /// Connections of the job that are open now.
  int64_t connections() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

} // namespace trireme::store
