#pragma once

#include <trireme/store/sockets.h>

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <string_view>

namespace trireme::store::test {

/// A listening socket of the loopback interface, and its port.
struct Door {
  int listening = listen_on({"127.0.0.1", 0});
  Endpoint endpoint{"127.0.0.1", bound_port(listening)};
};

/// A connection that says what it likes.
class RawConnection {
 public:
  explicit RawConnection(const Endpoint& endpoint)
      : socket_(try_to_connect(endpoint, std::chrono::seconds(10)).socket) {}

  void send(std::string_view bytes) {
    [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// So many bytes, fewer when the other end closes or is silent for ten seconds.
  std::string receive(size_t bytes) {
    std::string received;
    char byte = 0;
    while (received.size() < bytes && readable() && ::recv(socket_.get(), &byte, 1, 0) == 1) {
      received += byte;
    }
    return received;
  }
  /// Ends with a reset, which leaves no port of this host waiting.
  void break_off() {
    const linger now{1, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  /// Whether the other end closes within ten seconds, after whatever it still says.
  bool closed() {
    char byte = 0;
    while (readable()) {
      if (::recv(socket_.get(), &byte, 1, 0) <= 0) {
        return true;
      }
    }
    return false;
  }

 private:
  bool readable() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    return ::poll(&waiting, 1, 10'000) == 1;
  }
  Descriptor socket_;
};

/// Asks again and again for at most ten seconds.
template <typename Condition>
bool eventually(const Condition& condition) {
  for (int turn = 0; turn < 1000; ++turn) {
    if (condition()) {
      return true;
    }
    ::usleep(10'000);
  }
  return false;
}

} // namespace trireme::store::test
