#pragma once

#include <string>

struct sockaddr;

namespace trireme {

/// True if the address stands for all addresses of a host (0.0.0.0, ::, ::ffff:0.0.0.0): a socket that listens on it is
/// reachable from every network.
bool is_every_address(const sockaddr* address);

/// The same for text: a number in any form that getaddrinfo() reads, also in brackets, or *. Names are not looked up.
bool is_every_address(const std::string& text);

} // namespace trireme
