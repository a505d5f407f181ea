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
  /// Innermost first: `trireme::comm::Work::wait() + 0x1c`, or `program+0x12ab` for a function without a name.
  std::vector<std::string> frames;
};

/// Prepares capture_stack(): loads what backtrace() needs, and handles SIGURG (ignored by default) unless it is in use.
/// May be called again.
void prepare_stack_capture();

/// Captures the stack of one thread (the main one for getpid()) by interrupting it with SIGURG. The result is empty if
/// the thread does not run within 100 ms or cannot walk its stack within 500 ms. Its system calls may return EINTR, as
/// with any signal.
ThreadStack capture_stack(int64_t thread);
/// Captures the stacks of all threads, the main one first, at most 64.
std::vector<ThreadStack> capture_stacks();

/// State of a process that is gone or a zombie.
inline constexpr const char* kProcessEnded = "has ended";
/// The kernel's state of a process of this machine: "is stopped (SIGSTOP)", kProcessEnded, "runs", ...; "" if unknown.
std::string process_state(int64_t process);

/// Identifies the process namespace: two processes see the same process numbers if their texts are equal.
std::string process_place();

} // namespace trireme
