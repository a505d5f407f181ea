#pragma once

#include <trireme/base/clock.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

/// Requests and responses between processes that start and end independently. (A Group cannot serve them: its members
/// are fixed and fail as one.) One folder per transport.
///
/// A message has a short header (JSON, at most kLargestHeader bytes) and a long body of bytes, whose meaning is the
/// caller's. A server receives the requests of all clients in order of arrival and may answer them in any order.
namespace trireme::rpc {

using Clock = trireme::Clock;
inline constexpr size_t kLargestHeader = size_t{64} << 20;
/// As many bytes as the room has.
inline constexpr size_t kWholeRoom = ~size_t{0};

/// A request in flight.
class Call {
 public:
  virtual ~Call() = default;
  /// Returns the response's header; its body is then in the room. Errors: PeerError if the connection breaks. If
  /// `deadline` passes, the connection is broken too, because a late response would overwrite reused memory. Every
  /// later wait() throws the same error.
  virtual std::string wait(Clock::time_point deadline) = 0;
  /// Waits until wait() would not block, or until `time`, which does not break the connection. Returns done().
  virtual bool wait_until(Clock::time_point time) = 0;
  /// True if wait() would not block: the response has arrived, or the connection is broken.
  virtual bool done() const = 0;
};

/// A connection to one server, used by one thread. A broken connection stays broken: connect again.
class Client {
 public:
  virtual ~Client() = default;
  /// Sends a request. The response's body is written to `room` and may be shorter; its header then tells the length.
  /// `body` and `room` must stay valid until wait() returns or throws, or the client is destroyed.
  virtual std::shared_ptr<Call> call(std::string header, std::span<const std::byte> body = {},
                                     std::span<std::byte> room = {}) = 0;
  /// Bytes of bodies sent and received so far.
  virtual int64_t bytes_sent() const = 0;
  virtual int64_t bytes_received() const = 0;
};

/// A request or the end of a client, in order for each client.
struct Event {
  enum class Kind { request, gone };
  Kind kind = Kind::request;
  /// Unique for each connection.
  uint64_t client = 0;
  /// Identifies the request in reply(). Unique for each request of a server.
  uint64_t id = 0;
  std::string header;
  /// Valid until reply(). On one host it may be the client's own memory.
  std::span<const std::byte> body;
  /// Memory for the response's body, to be written before reply(): as long as the client's room. On one host it may be
  /// the client's own memory.
  std::span<std::byte> room;
};

/// Receives requests of any number of clients; used by one thread.
class Server {
 public:
  virtual ~Server() = default;
  /// Returns the next event, or nullopt after `timeout`.
  virtual std::optional<Event> next(std::chrono::milliseconds timeout) = 0;
  /// Answers a request. The first `body_bytes` of its room, at most all, are sent as the body. Does nothing if the
  /// client is gone.
  virtual void reply(uint64_t id, std::string header, size_t body_bytes = kWholeRoom) = 0;
  /// The address for clients, such as "tcp://10.0.0.1:4711".
  virtual std::string address() const = 0;
};

/// Credentials of a job: only processes with its secret may connect.
struct Access {
  /// Empty: any process may connect. Allowed on the loopback interface only.
  std::string secret;
  std::string job;
};

/// Serves at an address:
/// - "tcp://HOST:PORT" (PORT 0: any free port).
/// - "fd://NUMBER": a listening TCP socket that this process has inherited.
/// - "grpc://HOST:PORT" and, with TLS, "grpcs://HOST:PORT"; "grpc+fd://NUMBER" and "grpcs+fd://NUMBER" (docs/grpc.md).
/// - "local://NAME": threads of this process.
///
/// Errors: InputError for an address that cannot be used.
std::unique_ptr<Server> serve(const std::string& address, const Access& access);
/// Connects, and retries until `deadline`. Errors: InputError if retrying cannot help, PeerError if no server answered.
std::unique_ptr<Client> connect(const std::string& address, const Access& access, Clock::time_point deadline);

/// A transport: the prefix of its addresses, and its functions.
struct Transport {
  std::string scheme; // "tcp://"
  std::function<std::unique_ptr<Server>(const std::string& address, const Access& access)> serve;
  std::function<std::unique_ptr<Client>(const std::string& address, const Access& access, Clock::time_point deadline)>
      connect;
};
/// Adds a transport before any thread uses it. Tests use it to simulate a network.
void add_transport(Transport transport);

} // namespace trireme::rpc
