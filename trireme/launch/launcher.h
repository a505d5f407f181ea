#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

struct LaunchOptions {
  /// Processes to start on this machine, at least 1.
  int ranks = 1;
  /// The program (searched in PATH when it has no slash) and its arguments.
  std::vector<std::string> command;
  /// How often all ranks are started again after one failed. Exit code 2 (the user's input) is never tried again.
  int max_restarts = 0;
  /// Where rank<r>.log goes, appended to. Empty: a new folder that only this user can read, in the temporary folder; it
  /// is removed again after a success of which everything was shown.
  std::filesystem::path log_dir;
  /// False: rank 0's output is shown byte for byte, the others' only written to their logs.
  /// True: whole lines of all ranks are shown, each after "[rank r] ".
  bool all_output = false;
  /// From asking a rank to end (SIGTERM) to killing it (SIGKILL).
  double grace_seconds = 5;
  /// Variables for the ranks beyond the launcher's own environment.
  std::vector<std::pair<std::string, std::string>> extra_env;
};

/// Starts the ranks, watches them, and returns when no process of them is left.
///
/// Returns: 0 when all ranks ended with 0; otherwise the first failing rank's exit code, 128 + signal when a signal ended
///   it (137 for SIGKILL); 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP to the launcher.
/// Ranks: see environment.h for what they are told. Each has a session (and so a process group) of its own; rank 0 keeps
///   the launcher's standard input, the others read /dev/null. They inherit no other descriptor than TRIREME_LIFELINE_FD
///   and, rank 0, TRIREME_LISTEN_FD. Children of ranks are ended with them, those that moved to another session too.
/// Signals: SIGINT is passed on as it is, SIGTERM and SIGHUP as SIGTERM, each to the rank's whole process group; a second
///   one kills at once. SIGUSR1 and SIGUSR2 go to the ranks. However the launcher dies, the kernel kills the ranks
///   (PR_SET_PDEATHSIG) and a guardian process kills their process groups.
/// Output: the launcher's own words go to stderr after "[launch] ".
/// Caller: a program that has no other child processes and whose calling thread stays alive; the launcher adopts and
///   reaps every orphan below it, and blocks the signals above while it runs.
/// Cost: one thread, no polling; about 1 ms a rank to start.
/// Errors: InputError when the program or the log folder cannot be used; Error when the system refuses a process or socket.
int run(const LaunchOptions& options);

} // namespace trireme::launch
