#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// The stack of one thread of this process.
struct ThreadStack {
  int64_t thread = 0;
  bool main = false;
  /// Its name in the kernel: "trireme-rank", "pt_gloo_0".
  std::string name;
  /// "runs", "sleeps", "stopped", ...
  std::string state;
  /// Innermost first: `trireme::comm::Work::wait() + 0x1c`, or `program+0x12ab` where the program has no name for it.
  std::vector<std::string> frames;
};

/// Prepares capture_stack(): loads what backtrace() needs and handles SIGURG, which does nothing by default, unless
/// it is in use. May be called again.
void prepare_stack_capture();

/// The stack of one thread of this process (the main one for getpid()), taken by interrupting it with SIGURG. A thread
/// that does not run within 100 ms, or cannot walk through its stack within 500 ms, has none. System calls that it is
/// in may return EINTR, as with any signal.
ThreadStack capture_stack(int64_t thread);
/// Captures the stacks of all threads, the main one first, at most 64.
std::vector<ThreadStack> capture_stacks();

/// The state of a process that is gone, or of which only the exit status is left.
inline constexpr const char* kProcessEnded = "has ended";
/// The kernel's state of a process of this machine: "is stopped (SIGSTOP)", kProcessEnded, "runs", ...; "" if unknown.
std::string process_state(int64_t process);

/// Identifies the process namespace: two processes see the same process numbers if their texts are equal.
std::string process_place();

} // namespace trireme
