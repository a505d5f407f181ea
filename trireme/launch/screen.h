#pragma once

#include <string>
#include <string_view>

namespace trireme::launch {

/// Writes to a descriptor without ever waiting for its reader; what does not fit waits in memory.
/// When the reader is gone or the disk is full, the rest is dropped: the job goes on and its logs are whole.
class Outlet {
 public:
  /// `fd` stays the caller's and may be shared with other processes, so its flags are not touched.
  explicit Outlet(int fd) : fd_(fd) {}

  void write(std::string_view bytes);
  /// Writes as much as can be written at once.
  void flush();
  int fd() const {
    return fd_;
  }
  bool pending() const {
    return !pending_.empty();
  }
  /// So much is waiting that no more should be read for this outlet.
  bool full() const;
  /// False while a line is unfinished; a live progress line counts as one until it is cleared.
  bool at_line_start() const {
    return at_line_start_;
  }

 private:
  int fd_;
  std::string pending_;
  size_t written_ = 0;
  bool broken_ = false;
  bool at_line_start_ = true;
  std::string tail_;
};

/// The launcher's stdout and stderr.
class Screen {
 public:
  Screen();

  Outlet& out() {
    return out_;
  }
  Outlet& err() {
    return err_;
  }
  /// One line of the launcher's own on stderr, after "[launch] ", never in the middle of a line of a rank.
  void say(std::string_view words);
  bool pending() const {
    return out_.pending() || err_.pending();
  }
  /// Columns of the terminal behind stderr; 0 when it is none.
  int columns() const {
    return columns_;
  }

 private:
  Outlet out_;
  Outlet err_;
  int columns_ = 0;
  bool same_terminal_ = false;
};

} // namespace trireme::launch
