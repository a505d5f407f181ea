#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/launch/lease.h>
#include <trireme/launch/messages.h>
#include <trireme/launch/process.h>

#include <sys/types.h>

#include <optional>
#include <vector>

namespace trireme::launch {

/// The process between the launcher and the ranks of one start: it starts them, adopts and reaps the processes that
/// they leave behind, and sends the signals. When the launcher is gone, also after SIGKILL, it kills all processes
/// below it, including those in another session and those that ended ranks left. If it is killed itself, the kernel
/// ends the ranks and the launcher adopts the rest; see kill_children().
///
/// It has its own session and blocks all signals, so a signal that ends the launcher does not end it first.
/// Under an agent it holds the lease (lease.h): as parent of the ranks it ends them also while the agent is stopped.
///   orders  {"do": "signal" | "stop", "signal": N}, {"do": "kill"}, {"do": "look"}, {"do": "lease", "until":
///   nanoseconds of host_time()}
///   events  {"is": "started", "pids": [...]} or {"is": "refused", ...}; {"is": "ended", ...}, {"is": "say", ...};
///           {"is": "looked"}: every rank that ended before the order was reported; {"is": "over", "stuck": whether a
///           process does not end}
class Guardian {
 public:
  struct Terms {
    /// Ends the ranks then; absent: it needs no lease.
    std::optional<HostTime> lease = std::nullopt;
    /// Where it says {"is": "gone"} once all have ended after its launcher was lost; -1: nowhere.
    int last_word_fd = -1;
  };

  /// Begins to start the programs, one for each rank; the event "started" or "refused" follows.
  /// Errors: Error when the system refuses a process or descriptors.
  Guardian(const std::vector<SpawnRequest>& ranks, const Terms& terms);
  /// Makes it kill the remaining processes, and waits until it ends.
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
  /// Sends an order; also continues a guardian that was stopped.
  void tell(const Message& order);
  /// The next event; nullopt if there is none yet, or if the guardian is gone(). `wait`: blocks until there is an event
  /// or it is gone.
  std::optional<Message> next(bool wait);
  /// Whether it has ended and all its events have been read.
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
