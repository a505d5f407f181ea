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

/// Opens a listening socket on this one address (port 0: any) and returns its descriptor. Errors: InputError if the
/// port is in use, if the address is not of this machine, and for 0.0.0.0 and ::, which would be reachable from all of
/// its networks.
int listen_on(const Endpoint& endpoint);

/// Port of a listening socket; 0 if it is not one.
int bound_port(int descriptor);

/// Whether a socket is bound to a loopback address.
bool bound_to_loopback(int descriptor);

/// Whether the other end of a connection is on the loopback interface, and so on this host.
bool peer_on_loopback(int descriptor);

/// The result of one attempt to connect.
struct Attempt {
  /// Non-blocking; empty if nothing listens.
  Descriptor socket;
  /// The host name is unknown, at least now.
  bool unknown_host = false;
};

/// Tries once to connect, on the first address of the host that works.
Attempt try_to_connect(const Endpoint& endpoint, std::chrono::milliseconds patience);

/// A connection breaks when the other host is silent for this long: a cut cable or a host without power sends nothing.
/// A stopped process is not silent, because its kernel answers.
inline constexpr std::chrono::seconds kSilence{15};

/// Sets the options of a connection for short messages: no delay of small packets, and an error after kSilence, idle or
/// while the other side does not read.
void prepare_connection(int descriptor);

/// Ends idle connections only: a busy one may wait for a stopped process to read, which the kernel counts as silence.
void end_when_silent(int descriptor);

/// For connections with much traffic: removes prepare_connection()'s error while the other side does not read, for any
/// time. Callers must check is_silent() from time to time during a transfer; idle connections still end after kSilence.
void let_wait_to_read(int descriptor);

/// Whether the other host has not answered this one for kSilence.
bool is_silent(int descriptor);

/// Returns false if the kernel refuses.
bool set_nonblocking(int descriptor);

/// The address of the other end, "?" if unknown.
std::string peer_name(int descriptor);

/// The address that a socket is bound to, "?" if unknown.
std::string bound_host(int descriptor);

/// This machine's address on the route to `host`; "127.0.0.1" for a loopback name. Sends no packet. Errors: InputError
/// if the name is unknown.
std::string own_address_towards(const std::string& host);

/// Equal for processes on one machine: host name and boot id, or TRIREME_HOST (the launcher's name for it).
std::string host_identity();

} // namespace trireme::store
