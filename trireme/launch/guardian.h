#pragma once

#include <trireme/base/descriptor.h>
#include <trireme/launch/lease.h>
#include <trireme/launch/messages.h>
#include <trireme/launch/process.h>

#include <sys/types.h>

#include <optional>
#include <vector>

namespace trireme::launch {

/// The process between the launcher and the ranks of one start: it starts them, sends signals, and adopts and reaps
/// their orphans. When the launcher ends, also by SIGKILL, it kills all its descendants, including those in another
/// session and orphans of ended ranks. If the guardian is killed, the kernel ends the ranks and the launcher adopts the
/// rest; see kill_children().
///
/// It has its own session and blocks all signals: a signal that ends the launcher does not end it first. Under an agent
/// it holds the lease (lease.h): as parent of the ranks it ends them even while the agent is stopped.
///   orders  {"do": "signal" | "stop", "signal": N}, {"do": "kill"}, {"do": "look"}, {"do": "lease", "until":
///   nanoseconds of host_time()}
///   events  {"is": "started", "pids": [...]} or {"is": "refused", ...}; {"is": "ended", ...}, {"is": "say", ...};
///           {"is": "looked"}: every rank that ended before the order was reported; {"is": "over", "stuck": whether a
///           process does not end}
class Guardian {
 public:
  struct Terms {
    /// Ends the ranks at that time; absent: no lease is needed.
    std::optional<HostTime> lease = std::nullopt;
    /// Receives {"is": "gone"} once all ranks have ended after the launcher was lost; -1: nothing is sent.
    int last_word_fd = -1;
  };

  /// Begins to start the programs, one for each rank; the event "started" or "refused" follows.
  /// Errors: Error when the system refuses a process or descriptors.
  Guardian(const std::vector<SpawnRequest>& ranks, const Terms& terms);
  /// Kills the remaining processes and waits until it ends.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable when next() has an event.
  int fd() const { return line_.get(); }
  /// Sends an order; also continues a stopped guardian.
  void tell(const Message& order);
  /// The next event; nullopt if there is none yet, or after the end (gone()). `wait`: blocks until one of
  /// these.
  std::optional<Message> next(bool wait);
  /// True if it has ended and all its events have been read.
  bool gone() const { return gone_; }

 private:
  Descriptor line_;
  MessageReader reader_;
  pid_t pid_ = -1;
  bool gone_ = false;
};

} // namespace trireme::launch
