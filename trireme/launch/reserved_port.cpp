#include <trireme/launch/reserved_port.h>

#include <trireme/base/error.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <string>

namespace trireme::launch {
namespace {

constexpr int kFirst = 10'000;
constexpr int kLast = 65'535;
constexpr int kTries = 2'000;

struct Range {
  int first = 32'768;
  int last = 60'999;
};

/// The kernel's range of ephemeral ports.
Range automatic_ports() {
  Range range;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> range.first >> range.last;
  return range;
}

/// A name that one process per network namespace can hold, whatever its user; the kernel releases it with the process.
/// nullopt: another process holds it.
std::optional<Descriptor> claim(int port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = concat("trireme-port-", port);
  std::memcpy(address.sun_path + 1, name.data(), name.size()); // the zero before it: no file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Descriptor socket_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket_fd && ::bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
      errno == EADDRINUSE) {
    return std::nullopt;
  }
  return socket_fd;
}

bool can_bind(int family, const sockaddr* address, socklen_t length) {
  const Descriptor socket_fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return !socket_fd || ::bind(socket_fd.get(), address, length) == 0 ||
         errno != EADDRINUSE; // no IPv6: nothing listens there
}

/// Without SO_REUSEADDR and on all addresses: then a program can listen with any options.
bool is_free(int port) {
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_port = htons(static_cast<uint16_t>(port));
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = any4.sin_port;
  return can_bind(AF_INET, reinterpret_cast<const sockaddr*>(&any4), sizeof(any4)) &&
         can_bind(AF_INET6, reinterpret_cast<const sockaddr*>(&any6), sizeof(any6));
}

} // namespace

ReservedPort reserve_port() {
  const Range automatic = automatic_ports();
  std::random_device random;
  for (int turn = 0; turn < kTries; ++turn) {
    const int port = kFirst + static_cast<int>(random() % (kLast - kFirst + 1));
    if (turn < kTries / 2 && port >= automatic.first && port <= automatic.last) {
      continue;
    }
    if (auto claimed = claim(port); claimed && is_free(port)) {
      return {std::move(*claimed), port};
    }
  }
  throw Error("launch", "there is no free port for MASTER_PORT", "Look at what listens on this machine: ss -tln.");
}

} // namespace trireme::launch
