#pragma once

#include <trireme/store/secret.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace trireme::store {

struct ServerOptions {
  Secret secret = {};
  /// The job's name, the same for all its clients; distinguishes its store from another job's on the same port.
  std::string job = {};
  /// Time in which a connection must prove that it belongs to the job; then it is closed.
  std::chrono::milliseconds stranger_patience{5000};
  /// Limit of unproved connections; beyond it the oldest is closed.
  size_t most_strangers = 256;
};

/// The key-value store of the processes of one job.
///
/// One thread serves all connections without blocking. Until a connection has proved that it knows the secret
/// (handshake.h) it may send 64 bytes, and the first wrong byte closes it. Afterwards a message may have 16 MiB; a
/// longer one, or one that is not a request, closes the connection. A warning, at most one per second, counts refused
/// connections. Keys are lost with the server. Cost: one thread that sleeps, one descriptor per connection, about 20 us
/// of one core per request.
class Server {
 public:
  /// Serves on a listening socket and owns it. Errors: Error if the system refuses a thread or descriptor.
  explicit Server(int listening, ServerOptions options = {});
  /// Closes all connections.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Connections refused so far.
  int64_t refused() const;
  /// The job's connections that are open now.
  int64_t connections() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

} // namespace trireme::store
