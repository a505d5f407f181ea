#pragma once

#include <trireme/launch/hostfile.h>
#include <trireme/launch/restart_account.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

/// What to start on so many slots.
struct Arrangement {
  /// At most as many as there are slots; hosts are filled in order.
  int ranks = 1;
  std::vector<std::string> command;
  /// Something to say about it before the start, such as a batch that is now accumulated.
  std::string note;
};

struct LaunchOptions {
  /// Processes to start on this machine, at least 1. With `hosts`: at most so many in all, 0 for all slots.
  int ranks = 1;
  /// The program (searched in PATH when it has no slash) and its arguments.
  std::vector<std::string> command;
  /// How often all ranks are started again after one failed or a host was lost. Exit code 2 (the user's input) is never tried again.
  int max_restarts = 0;
  /// Where rank<r>.log goes, appended to. Folders made here are for this user only. Empty: a new one in the temporary folder; it
  /// is removed again after a success of which everything was shown.
  std::filesystem::path log_dir;
  /// False: rank 0's output is shown byte for byte, the others' only written to their logs.
  /// True: whole lines of all ranks are shown, each after "[rank r] ".
  bool all_output = false;
  /// From asking a rank to end to killing it (SIGKILL). After a failure at most 5 s.
  double grace_seconds = 5;
  /// Variables for the ranks beyond the launcher's own environment.
  std::vector<std::pair<std::string, std::string>> extra_env;
  /// The ranks answer SIGTERM by saving and ending with 0: SIGTERM, SIGHUP and SIGUSR1 are requests to do so, and the launcher's
  /// exit code is 0 when all did.
  bool preemptible = false;

  /// Machines to run on, in this order; empty: this one. Each gets consecutive ranks.
  std::vector<Host> hosts;
  /// Words that start a program on another machine, called as RSH... HOST PROGRAM agent. Empty: ssh.
  std::vector<std::string> rsh;
  /// The program that is the agent when called with the argument "agent": the same path on all hosts. Empty: this program.
  std::filesystem::path agent;
  /// The job runs on the first max_nodes usable hosts (0: all), and ends when fewer than min_nodes are left (0: max_nodes).
  int min_nodes = 0;
  int max_nodes = 0;
  /// A host that says nothing for so long is lost.
  double heartbeat_timeout = 5;

  /// Decides what to start; called before every start on several hosts, as the world may have become smaller. Absent: `command` on
  /// all slots. Errors: InputError ends the job.
  std::function<Arrangement(int slots)> arrange;
  /// How far the ranks are, to tell what a failure costs; see RestartAccount.
  std::function<std::optional<Progress>()> progress;
};

/// How a job went.
struct JobReport {
  int exit_code = 0;
  /// The signal by which somebody ended it, 0 for none. With exit_code 0: preempted, the ranks have saved.
  int received_signal = 0;
  std::vector<Restart> restarts;
  double total_seconds = 0;
  /// Share of the time that was neither down nor redone: "effective training time ratio". 1 without restarts.
  double ettr = 1;
};

/// Starts the ranks, watches them, and returns when no process of them is left.
///
/// Exit code: 0 when all ranks ended with 0; otherwise the first failing rank's exit code, 128 + signal when a signal ended
///   it (137 for SIGKILL), 1 for a lost host; 130, 143, 129 or 138 after SIGINT, SIGTERM, SIGHUP or SIGUSR1 to the launcher.
/// Ranks: see environment.h for what they are told. Each has a session (and so a process group) of its own; rank 0 keeps
///   the launcher's standard input on one machine, the others read /dev/null. They inherit no other descriptor than
///   TRIREME_LIFELINE_FD, TRIREME_SECRET_FD and, rank 0, TRIREME_LISTEN_FD. Children of ranks are ended with them, those
///   that moved to another session too.
/// Hosts: one agent each (see agent.h), started over ssh or `rsh`; their input and output are the connection, no port is opened.
///   A lost host is replaced by the next usable one of the list, or the world gets smaller as far as min_nodes allows.
/// Signals: SIGINT is passed on as it is, SIGTERM and SIGHUP as SIGTERM, each to the rank's whole process group; a second
///   one kills at once. SIGUSR1 and SIGUSR2 go to the ranks. For `preemptible` see there. However the launcher dies, a guardian
///   process kills the ranks and all that descends from them, and agents kill theirs; see guardian.h.
/// Output: the launcher's own words go to stderr after "[launch] ".
/// Caller: a program that has no other child processes and whose calling thread stays alive; the launcher adopts and
///   reaps every orphan below it, and blocks the signals above while it runs.
/// Cost: one thread and one more process, no polling; about 1 ms a rank to start.
/// Errors: InputError when the program, the log folder or a host's setup cannot be used; Error when the system refuses a process
///   or socket.
JobReport run_job(const LaunchOptions& options);

/// The exit code of run_job().
int run(const LaunchOptions& options);

} // namespace trireme::launch
