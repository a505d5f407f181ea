#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace trireme::comm {

struct Endpoint {
  std::string host;
  int port = 0;
};

/// True for localhost, 127.x.y.z and ::1.
bool is_loopback(const std::string& host);

/// Opens a listening socket on this address (port 0: any) and returns its descriptor.
/// Errors: InputError when the port is in use or the address is not of this machine.
int listen_on(const Endpoint& endpoint);

/// Port that a listening socket is bound to; 0 when it is no such socket.
int bound_port(int descriptor);

/// Whether someone accepts connections there at this moment.
bool accepts_connections(const Endpoint& endpoint);

/// This machine's address on the way to `host`; "127.0.0.1" when that is this machine itself
/// under a loopback name. No packet is sent. Errors: InputError when the name is unknown.
std::string own_address_towards(const std::string& host);

/// Equal for processes that share a machine: host name and boot id, or what TRIREME_HOST says (the launcher's name for it).
std::string host_identity();

} // namespace trireme::comm
