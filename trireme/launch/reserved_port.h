#pragma once

#include <trireme/launch/descriptor.h>

namespace trireme::launch {

/// A port of this machine on which a program may listen later.
struct ReservedPort {
  /// While it is open, no other launcher reserves the port. Empty if the system has no such sockets.
  Descriptor claim;
  int port = 0;
};

/// Finds a port on which no process listens. The kernel assigns it to no connection and no bind to port 0, unless its
/// range for these (net.ipv4.ip_local_port_range) leaves no other. Nothing is bound to it, so any program can take it.
/// Errors: Error when no port is free.
ReservedPort reserve_port();

} // namespace trireme::launch
