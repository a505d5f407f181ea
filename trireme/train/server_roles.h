#pragma once

#include <trireme/train/commands.h>

#include <trireme/config/engine_config.h>
#include <trireme/config/run_types.h>
#include <trireme/shards/data_parallel/sync_factory.h>

#include <optional>
#include <string>

namespace trireme::train {

/// One of several processes in worlds of their own: a worker of parameter servers, or a replica that may be lost and
/// join again.
struct WorkerPlace {
  int worker = 0;
  int workers = 1;
};

/// TRIREME_WORKER of the launcher, "w/W". Nothing: not a worker. Errors: InputError for malformed text.
std::optional<WorkerPlace> worker_of_environment();

/// True if this process is one of the servers (TRIREME_SERVER, "s/S").
bool is_server();

// Below: no_server_roles.cpp in a build without extensions, where the first two throw InputError.

/// InitializeOptions::sync of a worker. The launcher's TRIREME_SERVERS has the servers' addresses; the rendezvous of
/// replicas is the job's one server. Errors: InputError for malformed variables or without an address.
parallel::SyncFactory worker_sync(const config::EngineConfig& config, const WorkerPlace& place);

/// Serves until all workers have left or SIGTERM. For replicas that join and leave, the server is their store and ends
/// by SIGTERM. Snapshots are in the run folder's "servers"; the launcher's TRIREME_RESTART selects whether to continue
/// from them. Returns the exit status.
int serve_parameters(const TrainCommand& command, const config::RunTypes& types);

/// The version of gRPC that workers can use. Empty: none.
std::string grpc_version();

} // namespace trireme::train
