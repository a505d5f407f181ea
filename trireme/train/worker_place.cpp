#include <trireme/train/server_roles.h>

#include <trireme/base/env.h>

namespace trireme::train {

std::optional<WorkerPlace> worker_of_environment() {
  const auto place = env::place("TRIREME_WORKER");
  return place ? std::optional(WorkerPlace{place->first, place->second}) : std::nullopt;
}

bool is_server() {
  return env::place("TRIREME_SERVER").has_value();
}

} // namespace trireme::train
