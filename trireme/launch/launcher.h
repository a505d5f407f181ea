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

/// The ranks and the command to start on a number of slots.
struct Arrangement {
  /// At most the number of slots; hosts are filled in order.
  int ranks = 1;
  std::vector<std::string> command;
  /// A message to print before the start, such as a change of gradient accumulation.
  std::string note;
};

struct LaunchOptions {
  /// Processes to start on this machine, at least 1. With `hosts`: at most this many in total, 0 for all slots.
  int ranks = 1;
  /// The program (searched in PATH when it has no slash) and its arguments.
  std::vector<std::string> command;
  /// With servers the job consists of independent tasks: `ranks` workers and `servers` servers; see tasks.h.
  /// `max_restarts` then counts for all tasks.
  int servers = 0;
  /// The scheme in TRIREME_SERVERS: the protocol of the servers' sockets.
  std::string server_scheme = "tcp";
  /// How often all ranks are restarted after a rank failed or a host was lost. Exit code 2 (the user's input) is never
  /// retried.
  int max_restarts = 0;
  /// Folder of rank<r>.log; logs are appended. New folders are private to this user. Empty: a new one in the temporary
  /// folder, removed after a success unless ranks wrote what was not shown.
  std::filesystem::path log_dir;
  /// False: rank 0's output is shown byte for byte; that of the others only goes to their logs.
  /// True: full lines of all ranks are shown, each after "[rank r] ".
  bool all_output = false;
  /// Time from asking a rank to end to killing it (SIGKILL). After a failure at most 5 s.
  double grace_seconds = 5;
  /// Variables for the ranks in addition to the launcher's environment.
  std::vector<std::pair<std::string, std::string>> extra_env;
  /// The ranks answer SIGTERM by saving and ending with 0: SIGTERM, SIGHUP and SIGUSR1 request that. The launcher's
  /// exit code is then 0 when all did. It is also 0 when a rank ended by the signal itself before any step
  /// (`progress`): the training had not begun.
  bool preemptible = false;

  /// Machines to run on, in this order; empty: this one. Each gets consecutive ranks.
  std::vector<Host> hosts;
  /// Command that starts a program on another machine, called as RSH... HOST PROGRAM agent. Empty: ssh.
  std::vector<std::string> rsh;
  /// The program that acts as agent when called with the argument "agent": the same path on all hosts. Empty: this
  /// program.
  std::filesystem::path agent;
  /// The job runs on the first max_nodes usable hosts (0: all), and ends when fewer than min_nodes are left (0:
  /// max_nodes).
  int min_nodes = 0;
  int max_nodes = 0;
  /// A host without a message for this long is lost.
  double heartbeat_timeout = 5;

  /// The job's TRIREME_RUN_ID; empty: a new one.
  std::string run_id;
  /// Why another job has replaced this one, "" if none has. Asked before a restart, which it prevents.
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
  /// saving. That rank has done no step.
  bool not_begun = false;
  std::vector<Restart> restarts;
  double total_seconds = 0;
  /// "Effective training time ratio": the share of time that was neither down time nor repeated work. 1 without
  /// restarts.
  double ettr = 1;
};

/// Starts the ranks, watches them, and returns when none of their processes is left.
///
/// Exit code: 0 when all ranks ended with 0. Otherwise that of the first failing rank, or of the rank
/// that its error blames. It is 128 + signal when a signal ended that rank (137 for SIGKILL), and 1
/// for a lost host. After SIGINT, SIGTERM, SIGHUP or SIGUSR1 to the launcher it is 130, 143, 129 or
/// 138.
/// Ranks: see environment.h for their variables. Each has its own session, and so its own process group. Rank 0 keeps
/// the launcher's standard input on one machine; the others read /dev/null. They inherit no descriptor but
/// TRIREME_LIFELINE_FD, TRIREME_SECRET_FD and, rank 0, TRIREME_LISTEN_FD. Descendants are ended with them, also those
/// in another session.
/// Hosts: one agent each (agent.h), started over ssh or `rsh`. Their input and output are the connection: no
/// port is opened. A lost host is replaced by the next usable one of the list, or the world shrinks down to
/// min_nodes.
/// Signals: SIGINT is sent to each rank's process group; SIGTERM and SIGHUP are sent to it as SIGTERM. A second
/// one kills at once. SIGUSR1 and SIGUSR2 go to the ranks. See `preemptible`. If the launcher ends for any
/// reason, a guardian process kills the ranks and all their descendants, and agents kill theirs; see
/// guardian.h.
/// Output: the launcher's messages go to stderr after "[launch] ".
/// Caller: a program that has no other child processes and whose calling thread stays alive; the launcher adopts and
///   reaps every orphan below it, and blocks the signals above while it runs.
/// Cost: one thread and one more process, no polling; about 1 ms a rank to start.
/// Errors: InputError when the program, the log folder or a host's setup cannot be used. Error when the system refuses
/// a process or socket.
///   or socket.
JobReport run_job(const LaunchOptions& options);
/// The same with the caller's watch, which holds signals that come before the job begins.
JobReport run_job(const LaunchOptions& options, SignalWatch& signals);

/// The exit code of run_job().
int run(const LaunchOptions& options);

} // namespace trireme::launch
