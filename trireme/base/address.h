#pragma once

#include <string>

struct sockaddr;

namespace trireme {

/// Whether the address stands for every address of a host, so that whoever listens there can be reached from all of its networks:
/// 0.0.0.0, ::, ::ffff:0.0.0.0.
bool is_every_address(const sockaddr* address);

/// The same of a text: a number in any form that getaddrinfo() reads, also in brackets, or *. A name is not looked up.
bool is_every_address(const std::string& text);

} // namespace trireme
