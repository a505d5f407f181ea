#pragma once

#include <trireme/launch/descriptor.h>

namespace trireme::launch {

/// A port of this machine on which a program may listen later.
struct ReservedPort {
  /// No other launcher reserves the port while it is open. Empty where the system has no such sockets.
  Descriptor claim;
  int port = 0;
};

/// Finds a port on which nobody listens. The kernel gives it to no connection and to nobody who asks for any port,
/// unless its range for these (net.ipv4.ip_local_port_range) leaves no other. Nothing is bound to it, so that any
/// program can take it. Errors: Error when no port is free.
ReservedPort reserve_port();

} // namespace trireme::launch
