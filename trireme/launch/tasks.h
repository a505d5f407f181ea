#pragma once

#include <trireme/launch/attempt.h>

#include <string>
#include <vector>

namespace trireme::launch {

/// The hosts of a job of tasks, one entry per task: workers fill the slots in order, then servers go round all
/// hosts.
std::vector<Host> hosts_of_tasks(const std::vector<Host>& hosts, int workers, int servers);

/// Runs options.ranks workers and options.servers servers: independent processes, each its own world of one rank.
///
/// A failed task is restarted alone while max_restarts, counted over all tasks, lasts. Afterwards a failed
/// worker is dropped, and a failed server ends the job; so does exit code 2 (the user's input) of any task. A
/// task of a lost host is not restarted. When no worker runs, the servers get SIGTERM. The exit code is 0 when a
/// worker ended with 0, no server failed at the end, and none ended with kNotSaved (then it is 1). A socket for
/// each server is open before any task starts and for the lifetime of the job: workers reconnect to a restarted
/// server at the same address and wait meanwhile. Variables, besides those of environment.h for a world of one
/// rank:
///   all      TRIREME_SERVERS=tcp://HOST:PORT,...  in order (LaunchOptions::server_scheme)
///   worker   TRIREME_WORKER=w/W, and of its host's TRIREME_LOCAL_WORKER=l/L
///   server   TRIREME_SERVER=s/S; its socket is TRIREME_LISTEN_FD
/// Output: worker 0's is shown; logs are worker<w>.log and server<s>.log.
/// Signals: SIGINT goes to all. Requests to save (LaunchOptions::preemptible) go first to the workers, which need their
/// servers for it. `places`: one per task, workers first, each with one rank. `addresses`: where each can be reached.
Outcome run_tasks(const Job& job, std::vector<Member> places, std::vector<std::string> addresses);

} // namespace trireme::launch
