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

/// Requests and replies between processes that come and go: what a Group cannot do, whose members are fixed and fail
/// together. One folder a transport.
///
/// A message is a short text (JSON; at most kLargestHeader bytes) and a long body of bytes, whose meaning is the
/// caller's. A server takes the requests of all clients as they come and answers each when it likes, in any order.
namespace trireme::rpc {

using Clock = trireme::Clock;
inline constexpr size_t kLargestHeader = size_t{64} << 20;
/// As long as the room.
inline constexpr size_t kWholeRoom = ~size_t{0};

/// A request on its way.
class Call {
 public:
  virtual ~Call() = default;
  /// Returns the header of the reply; its body is in the room then. Errors: PeerError when the connection broke or
  /// `deadline` has passed, which breaks it too: the reply would come into memory that is somebody else's by then.
  /// Every later wait() throws it again.
  virtual std::string wait(Clock::time_point deadline) = 0;
  /// Waits until wait() would not block, or until `time`, which breaks nothing. Returns done().
  virtual bool wait_until(Clock::time_point time) = 0;
  /// Whether wait() would not block: the reply is there, or the connection is broken.
  virtual bool done() const = 0;
};

/// A connection to one server. One thread calls it; a broken one stays broken: connect again.
class Client {
 public:
  virtual ~Client() = default;
  /// Sends a request. `body` and `room`, where the reply's body goes (at most as many bytes as it has; the reply's
  /// header says how many where that is not clear), stay alive and in place until wait() has returned or thrown, or the
  /// client is gone.
  virtual std::shared_ptr<Call> call(std::string header, std::span<const std::byte> body = {},
                                     std::span<std::byte> room = {}) = 0;
  /// Bytes of bodies sent and received so far.
  virtual int64_t bytes_sent() const = 0;
  virtual int64_t bytes_received() const = 0;
};

/// What a server is told, in order for each client.
struct Event {
  enum class Kind { request, gone };
  Kind kind = Kind::request;
  /// Different for each connection.
  uint64_t client = 0;
  /// Of the request; reply() wants it. Different for each request of a server.
  uint64_t id = 0;
  std::string header;
  /// Valid until the reply. On one host it may be the client's own memory.
  std::span<const std::byte> body;
  /// Where the reply's body is to be written before reply(): as long as the client's room. On one host it may be the
  /// client's own memory.
  std::span<std::byte> room;
};

/// Takes requests of any number of clients. One thread calls it.
class Server {
 public:
  virtual ~Server() = default;
  /// The next event, or nullopt after `timeout`.
  virtual std::optional<Event> next(std::chrono::milliseconds timeout) = 0;
  /// Answers a request; the first `body_bytes` of its room, at most all, are the body and travel. Does nothing where
  /// the client is gone.
  virtual void reply(uint64_t id, std::string header, size_t body_bytes = kWholeRoom) = 0;
  /// What clients connect to, such as "tcp://10.0.0.1:4711".
  virtual std::string address() const = 0;
};

/// Who may connect: those that know the job's secret.
struct Access {
  /// Empty: anybody (only where `address` is on the loopback interface).
  std::string secret;
  std::string job;
};

/// Serves at an address: "tcp://HOST:PORT" (PORT 0: any), "fd://NUMBER" (a listening TCP socket that this process was
/// given), "grpc://HOST:PORT", "grpcs://HOST:PORT" (docs/grpc.md), "grpc+fd://NUMBER", "grpcs+fd://NUMBER" (the same on
/// such a socket), "local://NAME" (threads of this process). Errors: InputError for an address that cannot be used.
std::unique_ptr<Server> serve(const std::string& address, const Access& access);
/// Connects, and tries again until `deadline`. Errors: InputError for what trying again would not change, PeerError
/// when nobody answered.
std::unique_ptr<Client> connect(const std::string& address, const Access& access, Clock::time_point deadline);

/// One kind of address: what stands before it, and who serves and connects there.
struct Transport {
  std::string scheme; // "tcp://"
  std::function<std::unique_ptr<Server>(const std::string& address, const Access& access)> serve;
  std::function<std::unique_ptr<Client>(const std::string& address, const Access& access, Clock::time_point deadline)>
      connect;
};
/// Adds a kind of address that is not among those of serve(), before any thread uses it: tests simulate a network.
void add_transport(Transport transport);

} // namespace trireme::rpc
