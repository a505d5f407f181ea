#include <trireme/train/server_roles.h>

#include <trireme/base/error.h>

namespace trireme::train {
namespace {

[[noreturn]] void refuse() {
  throw InputError(
      "train", "parallel.sync asks for parameter servers or elastic replicas, which are extensions",
      "This Trireme was built without extensions. Build it with -DTRIREME_EXTENSIONS=ON, or leave it out.");
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
