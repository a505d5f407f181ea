#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/launch/messages.h>
#include <trireme/launch/process.h>

#include <sys/types.h>

#include <optional>
#include <vector>

namespace trireme::launch {

/// The process between the launcher and the ranks of one start: it starts them, adopts and reaps whatever they leave behind, and
/// sends the signals. When the launcher is gone, by SIGKILL too, it kills everything below it, also what has moved to another
/// session and what ranks that ended before have left. When it is killed itself, the kernel ends the ranks and the launcher
/// adopts the rest; see kill_children().
///
/// It sits in a session of its own and blocks all signals, so what ends the launcher does not end it first.
///   orders  {"do": "signal" | "stop", "signal": N}, {"do": "kill"}, {"do": "look"}
///   events  {"is": "started", "pids": [...]} or {"is": "refused", ...}; {"is": "ended", ...}, {"is": "say", ...};
///           {"is": "looked"}: every rank that ended before the order has been told; {"is": "over"}: nothing is left
class Guardian {
 public:
  /// Begins to start the programs, one a rank; "started" or "refused" tells how it went.
  /// Errors: Error when the system refuses a process or descriptors.
  explicit Guardian(const std::vector<SpawnRequest>& ranks);
  /// Has it kill what is left, and waits until it is gone.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const {
    return pid_;
  }
  /// Readable when there is something for next().
  int fd() const {
    return line_.get();
  }
  /// A guardian that somebody has stopped goes on.
  void tell(const Message& order);
  /// The next event; nullopt when there is none yet, or when the guardian is gone(). `wait`: blocks until one of the two.
  std::optional<Message> next(bool wait);
  /// It has ended, and all that it said has been read.
  bool gone() const {
    return gone_;
  }

 private:
  Descriptor line_;
  MessageReader reader_;
  pid_t pid_ = -1;
  bool gone_ = false;
};

} // namespace trireme::launch
