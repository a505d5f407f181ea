#include <trireme/store/transfer.h>

#include <trireme/base/clock.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace trireme::store {
namespace {

using std::chrono::milliseconds;

} // namespace

bool wait_until_ready(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{socket, events, 0};
    const int count = ::poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
    if (count > 0) {
      return true;
    }
    if (Clock::now() >= deadline) {
      return false;
    }
  }
}

Transfer send_all(int socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      if (!wait_until_ready(socket, POLLOUT, deadline)) {
        return Transfer::late;
      }
    } else if (errno != EINTR) {
      return Transfer::ended;
    }
  }
  return Transfer::done;
}

Transfer receive_all(int socket, char* buffer, size_t bytes, Clock::time_point deadline) {
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t count = ::recv(socket, buffer + filled, bytes - filled, 0);
    if (count > 0) {
      filled += static_cast<size_t>(count);
    } else if (count < 0 && errno == EAGAIN) {
      if (!wait_until_ready(socket, POLLIN, deadline)) {
        return Transfer::late;
      }
    } else if (count == 0 || errno != EINTR) {
      return Transfer::ended;
    }
  }
  return Transfer::done;
}

} // namespace trireme::store
