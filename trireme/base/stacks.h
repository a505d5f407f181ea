#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// Where a thread of this process is.
struct ThreadStack {
  int64_t thread = 0;
  bool main = false;
  /// As the kernel knows it: "trireme-rank", "pt_gloo_0".
  std::string name;
  /// "runs", "sleeps", "stopped", ...
  std::string state;
  /// Innermost first: `trireme::comm::Work::wait() + 0x1c`, or `program+0x12ab` where the program has no name for it.
  std::vector<std::string> frames;
};

/// Makes capture_stack() possible: loads what backtrace() needs and takes SIGURG, which does nothing by default, unless
/// somebody uses it. May be called again.
void prepare_stack_capture();

/// The stack of one thread of this process (the main one for getpid()), taken by interrupting it with SIGURG. A thread that
/// does not run within 100 ms, or cannot walk through its stack within 500 ms, has none. System calls that it is in may return EINTR, as with any signal.
ThreadStack capture_stack(int64_t thread);
/// Captures the stacks of all threads, the main one first, at most 64.
std::vector<ThreadStack> capture_stacks();

/// What the kernel says of a process of this machine: "is stopped (SIGSTOP)", "has ended", "runs", ...; "" when it cannot be told.
std::string process_state(int64_t process);

/// Tells whether two processes see the same process numbers: equal texts on both.
std::string process_place();

} // namespace trireme
