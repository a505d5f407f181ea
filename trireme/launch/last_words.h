#pragma once

#include <deque>
#include <string>
#include <vector>

namespace trireme::launch {

/// Whom a rank's last error makes responsible for its end.
struct Blame {
  /// Another process: the error is only the consequence of its end.
  bool others = false;
  /// Which ranks, if the error says it.
  std::vector<int> ranks;
};

/// Reads the last lines of rank `own` of `ranks`. Known are the errors of trireme::comm (PeerError) and the lost
/// connections of gloo and NCCL. An error of its own below them is why it ended, and blames nobody.
Blame blame_in(const std::deque<std::string>& lines, int own, int ranks);

/// The first line of what ended the program, at most 300 bytes: what() of the exception that nobody has caught, the
/// last line of a traceback of Python, an error of Trireme's ("[part] ..."), or libtorch's what() that a main() has
/// printed (the last line of the message); "" for none.
std::string exception_in(const std::deque<std::string>& lines);

} // namespace trireme::launch
