#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/extensions/server/rpc/rpc.h>
#include <trireme/store/sockets.h>

#include <memory>
#include <string>

/// Requests over TCP between processes that prove to each other that they know the job's secret. On one host, bodies
/// and rooms in the client's arena (comm/shm/arena.h) are not sent: the server reads and writes the client's memory.
///
/// Neither side needs a thread: a server moves bytes in next() and reply(), a client in call(), wait() and done(). If a
/// client sends more than the connection accepts at once, it starts one thread, which moves its bytes from then on.
namespace trireme::rpc::tcp {

/// Interval of the checks for a silent peer. A connection is broken when the other host has been silent for
/// store::kSilence, but not if its process is slow to call next() or wait(). A process that does not call them does not
/// notice.
inline constexpr std::chrono::seconds kBetweenLooks{1};

/// Serves on a listening socket, which stays open as long as any process holds it. Errors: InputError without a secret
/// on a socket that other hosts can reach.
std::unique_ptr<Server> serve(Descriptor listening, const Access& access);
/// Errors: InputError, PeerError; see rpc::connect().
std::unique_ptr<Client> connect(const store::Endpoint& endpoint, const Access& access, Clock::time_point deadline);

/// "tcp://HOST:PORT", with brackets around an IPv6 address. Errors: InputError.
store::Endpoint parse_address(const std::string& address);
std::string address_of(const store::Endpoint& endpoint);

} // namespace trireme::rpc::tcp
