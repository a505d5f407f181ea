#pragma once

#include "commands.h"

#include <trireme/parallel/averaging/elastic_averaging_sync.h>
#include <trireme/parallel/server/options.h>
#include <trireme/parallel/server/servers.h>

#include <optional>

namespace trireme::tools {

/// The parameter servers in the launcher's variables: TRIREME_SERVERS and TRIREME_WORKER, "w/W". Nothing: not a worker.
/// Errors: InputError for malformed variables.
std::optional<parallel::server::WorkerOptions> worker_of_environment();

/// The same for a replica that may be lost and join again: its rendezvous is the job's one server. Errors: InputError
/// without an address.
parallel::ReplicaOptions replica_of(const parallel::server::WorkerOptions& worker);

/// True if this process is one of the servers (TRIREME_SERVER, "s/S").
bool is_server();

/// Serves until all workers have left or SIGTERM. For replicas that join and leave, the server is their store and ends
/// by SIGTERM. Snapshots are in the run folder's "servers"; the launcher's TRIREME_RESTART selects whether to continue
/// from them. Returns the exit status.
int serve_parameters(const TrainCommand& command);

} // namespace trireme::tools
