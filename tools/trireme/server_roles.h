#pragma once

#include "commands.h"

#include <trireme/parallel/server/options.h>
#include <trireme/parallel/server/servers.h>

#include <optional>

namespace trireme::tools {

/// What the launcher has told this process of the parameter servers: TRIREME_SERVERS and TRIREME_WORKER, "w/W". Nothing: it is no worker.
/// Errors: InputError for variables that are none.
std::optional<parallel::server::WorkerOptions> worker_of_environment();

/// Whether this process is one of the servers (TRIREME_SERVER, "s/S").
bool is_server();

/// Serves until all workers have left or SIGTERM comes. Snapshots are in the run folder's "servers", and the launcher's word TRIREME_RESTART says whether to go on from them. Returns the exit status.
int serve_parameters(const TrainCommand& command);

} // namespace trireme::tools
