#pragma once

#include <trireme/launch/hostfile.h>
#include <trireme/launch/restart_account.h>
#include <trireme/launch/signals.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

/// What to start on a number of slots.
struct Arrangement {
  /// At most as many as there are slots; hosts are filled in order.
  int ranks = 1;
  std::vector<std::string> command;
  /// A message to print before the start, such as a change of gradient accumulation.
  std::string note;
};

struct LaunchOptions {
  /// Processes to start on this machine, at least 1. With `hosts`: at most so many in all, 0 for all slots.
  int ranks = 1;
  /// The program (searched in PATH when it has no slash) and its arguments.
  std::vector<std::string> command;
  /// With servers the job consists of tasks that live by themselves: `ranks` workers, and so many servers; see tasks.h.
  /// `max_restarts` is for all tasks together then.
  int servers = 0;
  /// What stands before "://" in TRIREME_SERVERS: what the servers speak on their sockets.
  std::string server_scheme = "tcp";
  /// How often all ranks are restarted after a rank failed or a host was lost. Exit code 2 (the user's input) is never
  /// retried.
  int max_restarts = 0;
  /// Folder of rank<r>.log; logs are appended. New folders are private to this user. Empty: a new one in the temporary
  /// folder, removed after a success unless ranks wrote what was not shown.
  std::filesystem::path log_dir;
  /// False: rank 0's output is shown byte for byte; that of the others only goes to their logs.
  /// True: whole lines of all ranks are shown, each after "[rank r] ".
  bool all_output = false;
  /// Time from asking a rank to end to killing it (SIGKILL). After a failure at most 5 s.
  double grace_seconds = 5;
  /// Variables for the ranks in addition to the launcher's environment.
  std::vector<std::pair<std::string, std::string>> extra_env;
  /// The ranks answer SIGTERM by saving and ending with 0: SIGTERM, SIGHUP and SIGUSR1 are requests to do so, and the
  /// launcher's exit code is 0 when all did, or when one ended by the signal itself before any step (`progress`): the
  /// training had not begun.
  bool preemptible = false;

  /// Machines to run on, in this order; empty: this one. Each gets consecutive ranks.
  std::vector<Host> hosts;
  /// Words that start a program on another machine, called as RSH... HOST PROGRAM agent. Empty: ssh.
  std::vector<std::string> rsh;
  /// The program that is the agent when called with the argument "agent": the same path on all hosts. Empty: this
  /// program.
  std::filesystem::path agent;
  /// The job runs on the first max_nodes usable hosts (0: all), and ends when fewer than min_nodes are left (0:
  /// max_nodes).
  int min_nodes = 0;
  int max_nodes = 0;
  /// A host that is silent for so long is lost.
  double heartbeat_timeout = 5;

  /// The job's TRIREME_RUN_ID; empty: a new one.
  std::string run_id;
  /// Why another job has taken this one's place, "" while none has. Asked before a restart, which it prevents.
  std::function<std::string()> superseded;
  /// Decides what to start; called before every start on several hosts, because the world may be smaller. Absent:
  /// `command` on all slots. Errors: InputError ends the job.
  std::function<Arrangement(int slots)> arrange;
  /// Reports the ranks' progress, to know what a failure costs; see RestartAccount.
  std::function<std::optional<Progress>()> progress;
};

/// The result of a job.
struct JobReport {
  int exit_code = 0;
  /// The signal that stopped the launcher, 0 for none. With exit_code 0: preempted, the ranks have saved.
  int received_signal = 0;
  /// With exit_code 0 and a signal: it came before a rank (of a job with servers: a worker) was ready to answer it by
  /// saving. That one has done nothing.
  bool not_begun = false;
  std::vector<Restart> restarts;
  double total_seconds = 0;
  /// "Effective training time ratio": the share of the time that was neither down time nor repeated work. 1 without
  /// restarts.
  double ettr = 1;
};

/// Starts the ranks, watches them, and returns when no process of them is left.
///
/// Exit code: 0 when all ranks ended with 0; otherwise the exit code of the first failing rank, or of the one that its
/// error leads to, 128 + signal when a signal ended
///   it (137 for SIGKILL), 1 for a lost host; 130, 143, 129 or 138 after SIGINT, SIGTERM, SIGHUP or SIGUSR1 to the
///   launcher.
/// Ranks: see environment.h for their variables. Each has a session (and so a process group) of its own; rank 0 keeps
///   the launcher's standard input on one machine, the others read /dev/null. They inherit no other descriptor than
///   TRIREME_LIFELINE_FD, TRIREME_SECRET_FD and, rank 0, TRIREME_LISTEN_FD. Children of ranks are ended with them,
///   those that moved to another session too.
/// Hosts: one agent each (see agent.h), started over ssh or `rsh`; their input and output are the connection, no port
/// is opened.
///   A lost host is replaced by the next usable one of the list, or the world gets smaller as far as min_nodes allows.
/// Signals: SIGINT is passed on as it is, SIGTERM and SIGHUP as SIGTERM, each to the rank's whole process group; a
/// second
///   one kills at once. SIGUSR1 and SIGUSR2 go to the ranks. See `preemptible`. If the launcher dies, however it does,
///   a guardian process kills the ranks and all their descendants, and agents kill theirs; see guardian.h.
/// Output: the launcher's messages go to stderr after "[launch] ".
/// Caller: a program that has no other child processes and whose calling thread stays alive; the launcher adopts and
///   reaps every orphan below it, and blocks the signals above while it runs.
/// Cost: one thread and one more process, no polling; about 1 ms a rank to start.
/// Errors: InputError when the program, the log folder or a host's setup cannot be used; Error when the system refuses
/// a process
///   or socket.
JobReport run_job(const LaunchOptions& options);
/// The same with the caller's watch, which keeps signals that come before the job begins.
JobReport run_job(const LaunchOptions& options, SignalWatch& signals);

/// The exit code of run_job().
int run(const LaunchOptions& options);

} // namespace trireme::launch
