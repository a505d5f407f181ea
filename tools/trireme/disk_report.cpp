#include "disk_report.h"

#include "offload_check.h"

#include <trireme/base/env.h>
#include <trireme/base/log.h>
#include <trireme/engine/same_options.h>

namespace trireme::tools {
namespace {

struct Host {
  bool speaks;   // this rank, for all of the host
  int64_t first; // rank
  int64_t ranks;
};

// A worker or replica that is a world of its own has as much as each of the others: the host's are counted from the
// first.
Host host_of(const comm::World& world) {
  const auto worker = env::place("TRIREME_LOCAL_WORKER");
  return worker ? Host{worker->first == 0, 0, worker->second}
                : Host{world.local_rank() == 0, world.rank(), world.local_size()};
}

} // namespace

void report_disks(const estimate::Run& run, comm::World& world) {
  if (!uses_files(run) || env::flag("TRIREME_RESTART")) {
    return;
  }
  engine::check_together(world.group(), [&] {
    if (const Host host = host_of(world); host.speaks) {
      for (const std::string& line : look_at_disks(run, host.first, host.ranks)) {
        log::info("offload: ", line);
      }
    }
  });
}

} // namespace trireme::tools
