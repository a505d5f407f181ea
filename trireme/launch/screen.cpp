#include <trireme/launch/screen.h>

#include <trireme/base/error.h>

#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace trireme::launch {
namespace {

constexpr size_t kFull = 256 * 1024;
constexpr std::string_view kClearedLine = "\r\x1b[2K";

} // namespace

void Outlet::write(std::string_view bytes) {
  if (bytes.empty()) {
    return;
  }
  // The clearing sequence may arrive in pieces; four bytes identify it.
  tail_.append(bytes.substr(bytes.size() - std::min(bytes.size(), kClearedLine.size() + 1)));
  tail_.erase(0, tail_.size() - std::min(tail_.size(), kClearedLine.size()));
  at_line_start_ = tail_.back() == '\n' || tail_ == kClearedLine;
  if (!broken_) {
    pending_.append(bytes);
    flush();
  }
}

void Outlet::flush() {
  while (written_ < pending_.size()) {
    pollfd ready = {fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) {
      break;
    }
    // A pipe that polls writable takes this much without waiting.
    const ssize_t wrote =
        ::write(fd_, pending_.data() + written_, std::min<size_t>(pending_.size() - written_, PIPE_BUF));
    if (wrote > 0) {
      written_ += static_cast<size_t>(wrote);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
      written_ = pending_.size();
    }
  }
  if (written_ == pending_.size()) {
    pending_.clear();
    written_ = 0;
  } else if (written_ > kFull) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

bool Outlet::full() const {
  return pending_.size() - written_ > kFull;
}

Screen::Screen() : out_(STDOUT_FILENO), err_(STDERR_FILENO) {
  if (::isatty(STDERR_FILENO) == 1) {
    winsize size{};
    columns_ = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    same_terminal_ = ::isatty(STDOUT_FILENO) == 1;
  }
}

void Screen::say(std::string_view words) {
  const bool clean = err_.at_line_start() && (!same_terminal_ || out_.at_line_start());
  err_.write(concat(clean ? "" : "\n", "[launch] ", words, "\n"));
}

} // namespace trireme::launch
