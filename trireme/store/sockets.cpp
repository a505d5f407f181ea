#include <trireme/store/sockets.h>

#include <trireme/base/address.h>
#include <trireme/base/env.h>
#include <trireme/base/error.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

namespace trireme::store {
namespace {

constexpr int kBacklog = 2048;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const Endpoint& endpoint, bool required) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (code != 0 && required) {
    throw InputError(
        "comm", concat("the host name \"", endpoint.host, "\" (MASTER_ADDR) is unknown: ", gai_strerror(code), "."),
        "Set MASTER_ADDR to a name or address that all hosts know.");
  }
  return Addresses(code == 0 ? found : nullptr, freeaddrinfo);
}

/// Waits for a pending connection; false if it fails or takes too long.
bool connected(int descriptor, std::chrono::milliseconds patience) {
  pollfd waiting{descriptor, POLLOUT, 0};
  int error = 0;
  socklen_t length = sizeof(error);
  return poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(patience.count(), 0, 60'000))) == 1 &&
         getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

std::string in_numbers(const sockaddr_storage& address, socklen_t length) {
  char text[NI_MAXHOST];
  return getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof(text), nullptr, 0,
                     NI_NUMERICHOST) == 0
             ? text
             : "?";
}

bool on_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr);
}

} // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

int listen_on(const Endpoint& endpoint) {
  const Addresses addresses = resolve(endpoint, true);
  int code = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (is_every_address(address->ai_addr)) {
      throw InputError(
          "comm",
          concat("MASTER_ADDR=", endpoint.host,
                 " stands for every address of this host, but the rendezvous uses a single one."),
          "Set it to 127.0.0.1 for one host, otherwise to the address under which the other hosts reach this one.");
    }
    Descriptor socket_fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (socket_fd && setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        bind(socket_fd.get(), address->ai_addr, address->ai_addrlen) == 0 && listen(socket_fd.get(), kBacklog) == 0) {
      return socket_fd.release();
    }
    code = errno;
    if (code == EADDRINUSE) {
      break;
    }
  }
  if (code == EADDRINUSE) {
    throw InputError("comm", concat("port ", endpoint.port, " on ", endpoint.host, " is in use by another program."),
                     "Choose another MASTER_PORT, or start with trireme launch, which finds a free one.");
  }
  throw InputError(
      "comm", concat("rank 0 cannot listen on ", endpoint.host, ":", endpoint.port, ": ", std::strerror(code), "."),
      "MASTER_ADDR must be an address of the host that runs rank 0, MASTER_PORT a port above 1023.");
}

int bound_port(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  int listening = 0;
  socklen_t flag_length = sizeof(listening);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &flag_length) != 0 || listening == 0) {
    return 0;
  }
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port) : 0;
}

bool bound_to_loopback(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 && on_loopback(address);
}

bool peer_on_loopback(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 && on_loopback(address);
}

Attempt try_to_connect(const Endpoint& endpoint, std::chrono::milliseconds patience) {
  Attempt attempt;
  const Addresses addresses = resolve(endpoint, false);
  attempt.unknown_host = addresses == nullptr;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Descriptor socket_fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket_fd && (connect(socket_fd.get(), address->ai_addr, address->ai_addrlen) == 0 ||
                      (errno == EINPROGRESS && connected(socket_fd.get(), patience)))) {
      prepare_connection(socket_fd.get());
      attempt.socket = std::move(socket_fd);
      break;
    }
  }
  return attempt;
}

void prepare_connection(int descriptor) {
  const int yes = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  const int silence = static_cast<int>(std::chrono::milliseconds(kSilence).count());
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof(silence));
  end_when_silent(descriptor);
}

void end_when_silent(int descriptor) {
  const int yes = 1;
  const int probes = 3;
  const int between = static_cast<int>(kSilence.count()) / (probes + 2);
  const int first = 2 * between;
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &first, sizeof(first));
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof(between));
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
}

void let_wait_to_read(int descriptor) {
  const int none = 0;
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &none, sizeof(none));
}

bool is_silent(int descriptor) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  // The kernel of a process that does not read still answers keep-alives, and the rare probes of its full window.
  constexpr int kUnansweredProbes = 3;
  return getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         (info.tcpi_retransmits > 0 || info.tcpi_probes >= kUnansweredProbes) &&
         info.tcpi_last_ack_recv > static_cast<uint32_t>(std::chrono::milliseconds(kSilence).count());
}

bool set_nonblocking(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0;
}

std::string peer_name(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? in_numbers(address, length)
                                                                                      : "?";
}

std::string bound_host(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? in_numbers(address, length)
                                                                                      : "?";
}

std::string own_address_towards(const std::string& host) {
  if (is_loopback(host)) {
    return "127.0.0.1";
  }
  const Addresses addresses = resolve({host, 9}, true);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    // Connecting a datagram socket picks its route without sending anything.
    const Descriptor socket_fd(socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST];
    if (socket_fd && connect(socket_fd.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        getsockname(socket_fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      return text;
    }
  }
  throw InputError("comm", concat("there is no route to \"", host, "\" (MASTER_ADDR)."),
                   "Check the network, or set MASTER_ADDR to another address.");
}

std::string host_identity() {
  if (const auto name = env::text("TRIREME_HOST")) {
    return *name;
  }
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return concat(name, "/", boot);
}

} // namespace trireme::store
