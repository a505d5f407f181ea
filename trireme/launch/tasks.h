#pragma once

#include <trireme/launch/attempt.h>

#include <string>
#include <vector>

namespace trireme::launch {

/// The hosts of a job of tasks, one entry a task: workers fill the slots in order, servers go round all hosts after
/// them.
std::vector<Host> hosts_of_tasks(const std::vector<Host>& hosts, int workers, int servers);

/// Runs options.ranks workers and options.servers servers: processes that live by themselves, each a world of its own.
///
/// A task is started again by itself while max_restarts, for all together, lasts. Afterwards a worker that ends is
/// dropped, and a server that ends is the end of the job; so is exit code 2 (the user's input) of any. A task of a lost
/// host is not started again. When no worker runs, the servers are asked to end by SIGTERM. The exit code is 0 when a
/// worker ended with 0, no server failed at the end, and none ended with kNotSaved (then it is 1). Addresses: a socket
/// for each server is open before any task starts and for as long as the job lives, so that workers find a server again
/// that was started again: who connects in between waits. Variables, besides those of environment.h for a world of one
/// rank:
///   all      TRIREME_SERVERS=tcp://HOST:PORT,...  in order (LaunchOptions::server_scheme)
///   worker   TRIREME_WORKER=w/W, and of its host's TRIREME_LOCAL_WORKER=l/L
///   server   TRIREME_SERVER=s/S; its socket is TRIREME_LISTEN_FD
/// Output: worker 0's is shown; logs are worker<w>.log and server<s>.log.
/// Signals: SIGINT goes to all; what asks to save (LaunchOptions::preemptible) first to the workers, which need their
/// servers for it. `places`: one a task, workers first, each with one rank. `addresses`: where each can be reached.
Outcome run_tasks(const Job& job, std::vector<Member> places, std::vector<std::string> addresses);

} // namespace trireme::launch
