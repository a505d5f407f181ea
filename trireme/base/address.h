#pragma once

#include <string>

struct sockaddr;

namespace trireme {

/// Whether the address means all addresses of a host, so that a listening socket is reachable from all its networks:
/// 0.0.0.0, ::, ::ffff:0.0.0.0.
bool is_every_address(const sockaddr* address);

/// The same for a text: a number in any form that getaddrinfo() reads, also in brackets, or *. A name is not looked up.
bool is_every_address(const std::string& text);

} // namespace trireme
