#pragma once

#include <deque>
#include <string>
#include <vector>

namespace trireme::launch {

/// The process that a rank's last error blames for its end.
struct Blame {
  /// Another process: the error follows from that one's end.
  bool others = false;
  /// The ranks, if the error names them.
  std::vector<int> ranks;
};

/// Reads the last lines of rank `own` of `ranks`. It knows the errors of trireme::comm (PeerError) and the lost
/// connections of gloo and NCCL. An error of the rank's own after them explains its end, and blames no other.
Blame blame_in(const std::deque<std::string>& lines, int own, int ranks);

/// The first line of the error that ended the program, at most 300 bytes; "" if there is none. It is what() of an
/// uncaught exception, the last line of a Python traceback, an error of Trireme's ("[part] ..."), or libtorch's what()
/// as a main() printed it (the last line of the message).
std::string exception_in(const std::deque<std::string>& lines);

} // namespace trireme::launch
