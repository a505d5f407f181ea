#pragma once

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::launch {

/// The file of the program `name`: `name` itself if it has a slash, otherwise the first match in PATH.
/// Errors: InputError "program not found: x", or that it is a folder or may not be run.
std::filesystem::path find_program(const std::string& name);

struct SpawnRequest {
  std::filesystem::path program;
  std::vector<std::string> arguments;   // with argument 0
  std::vector<std::string> environment; // NAME=value
  /// Become 0, 1 and 2 of the child.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  /// Stay open in the child under their numbers; everything else above 2 is closed.
  std::vector<int> keep;
  sigset_t signal_mask{};
  struct sigaction on_broken_pipe{};
};

/// Starts the program in its own session; the kernel kills it when the calling thread ends. Returns when
/// the program runs. A file system that does not answer may delay that forever: `wait` blocks until `fd` is
/// readable, or returns false to give up. Errors: InputError when the kernel refuses the file, Error when
/// it refuses a process. Returns -1 after giving up; the process is a killed child that may hang in the
/// kernel.
using WaitForExec = std::function<bool(int fd)>;
pid_t spawn(const SpawnRequest& request, const WaitForExec& wait = nullptr);

/// "was killed by SIGKILL" or "ended with exit code 3", from a wait status.
std::string describe_end(int wait_status);

/// The exit code, or 128 + signal.
int exit_code_of(int wait_status);

/// "SIGTERM"; "signal 42" for one without a name.
std::string signal_name(int number);

} // namespace trireme::launch
