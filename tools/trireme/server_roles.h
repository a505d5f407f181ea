#pragma once

#include "commands.h"

#include <trireme/parallel/averaging/elastic_averaging_sync.h>
#include <trireme/parallel/server/options.h>
#include <trireme/parallel/server/servers.h>

#include <optional>

namespace trireme::tools {

/// What the launcher has told this process of the parameter servers: TRIREME_SERVERS and TRIREME_WORKER, "w/W".
/// Nothing: it is no worker. Errors: InputError for variables that are none.
std::optional<parallel::server::WorkerOptions> worker_of_environment();

/// The same of a replica that may be lost and come: its meeting point is the job's one server. Errors: InputError for
/// no address.
parallel::ReplicaOptions replica_of(const parallel::server::WorkerOptions& worker);

/// Whether this process is one of the servers (TRIREME_SERVER, "s/S").
bool is_server();

/// Where replicas come and go the server is their store, and ends by SIGTERM. Else: serves until all workers have left
/// or SIGTERM comes. Snapshots are in the run folder's "servers", and the launcher's word TRIREME_RESTART says whether
/// to go on from them. Returns the exit status.
int serve_parameters(const TrainCommand& command);

} // namespace trireme::tools
