#pragma once

#include <string>
#include <string_view>

namespace trireme::launch {

/// Writes to a descriptor without blocking; bytes that do not fit wait in memory. If the reader ends or the disk is
/// full, drops the rest: the job continues and its logs are complete.
class Outlet {
 public:
  /// The caller owns `fd`, which other processes may share, so its flags are not changed.
  explicit Outlet(int fd) : fd_(fd) {}

  void write(std::string_view bytes);
  /// Writes as much as possible without blocking.
  void flush();
  int fd() const { return fd_; }
  bool pending() const { return !pending_.empty(); }
  /// True if so much is waiting that no more should be read for this outlet.
  bool full() const;
  /// False while a line is unfinished; a live progress line counts as one until it is cleared.
  bool at_line_start() const { return at_line_start_; }

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
  /// On other descriptors.
  Screen(int out, int err) : out_(out), err_(err) {}

  Outlet& out() { return out_; }
  Outlet& err() { return err_; }
  /// Prints a line of the launcher on stderr, after "[launch] ", never in the middle of a rank's line.
  void say(std::string_view words);
  bool pending() const { return out_.pending() || err_.pending(); }
  /// Columns of the terminal on stderr; 0 if it is no terminal.
  int columns() const { return columns_; }

 private:
  Outlet out_;
  Outlet err_;
  int columns_ = 0;
  bool same_terminal_ = false;
};

} // namespace trireme::launch
