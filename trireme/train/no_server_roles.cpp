#include <trireme/train/server_roles.h>

#include <trireme/engine/sync_kinds.h>

namespace trireme::train {
namespace {

[[noreturn]] void refuse() {
  engine::refuse_extension("train",
                           "parallel.sync asks for parameter servers or elastic replicas, which are extensions");
}

} // namespace

parallel::SyncFactory worker_sync(const config::EngineConfig&, const WorkerPlace&) {
  refuse();
}

int serve_parameters(const TrainCommand&, const config::RunTypes&) {
  refuse();
}

std::string grpc_version() {
  return "";
}

} // namespace trireme::train
