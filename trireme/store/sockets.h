#pragma once

#include <trireme/base/descriptor.h>

#include <chrono>
#include <string>

namespace trireme::store {

struct Endpoint {
  std::string host;
  int port = 0;
};

/// True for localhost, 127.x.y.z and ::1.
bool is_loopback(const std::string& host);

/// Opens a listening socket on this one address (port 0: any) and returns its descriptor.
/// Errors: InputError when the port is in use, the address is not of this machine, or it stands for all of
/// them (0.0.0.0, ::), which would be reachable from all of its networks.
int listen_on(const Endpoint& endpoint);

/// Port that a listening socket is bound to; 0 when it is no such socket.
int bound_port(int descriptor);

/// Whether a socket is bound to a loopback address.
bool bound_to_loopback(int descriptor);

/// Whether the other end of a connection is on the loopback interface, and so on this host.
bool peer_on_loopback(int descriptor);

/// The result of one attempt to connect.
struct Attempt {
  /// Non-blocking; empty if nobody listens.
  Descriptor socket;
  /// The host name is unknown (so far).
  bool unknown_host = false;
};

/// Tries once to connect, on the first address of the host that works.
Attempt try_to_connect(const Endpoint& endpoint, std::chrono::milliseconds patience);

/// A connection is broken when the other host is silent for so long: a cut cable or a host without power sends nothing.
/// A stopped process is not silent: its kernel answers.
inline constexpr std::chrono::seconds kSilence{15};

/// Sets the options of a connection for short messages: no delay for small packets, and an error after kSilence,
/// whether it is idle or waits for the other side to read.
void prepare_connection(int descriptor);

/// Ends idle connections only: a busy one may wait for a stopped process to read, which the kernel counts as silence.
void end_when_silent(int descriptor);

/// For connections over which much is sent: removes the error of prepare_connection() for one that waits for the other
/// side to read, however long. Who uses it asks is_silent() now and then while something is on its way; idle ones still
/// end after kSilence.
void let_wait_to_read(int descriptor);

/// Whether the other host has answered nothing for kSilence although this one asked.
bool is_silent(int descriptor);

/// Returns false when the kernel refuses.
bool set_nonblocking(int descriptor);

/// The address of the other end, "?" if unknown.
std::string peer_name(int descriptor);

/// The address that a socket is bound to, "?" if unknown.
std::string bound_host(int descriptor);

/// This machine's address on the way to `host`; "127.0.0.1" when that is this machine itself
/// under a loopback name. No packet is sent. Errors: InputError when the name is unknown.
std::string own_address_towards(const std::string& host);

/// Equal for processes that share a machine: host name and boot id, or what TRIREME_HOST says (the launcher's name for
/// it).
std::string host_identity();

} // namespace trireme::store
