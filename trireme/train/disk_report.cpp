#include <trireme/train/disk_report.h>

#include <trireme/train/offload_check.h>

#include <trireme/base/env.h>
#include <trireme/base/log.h>
#include <trireme/engine/same_options.h>

namespace trireme::train {
namespace {

struct Host {
  bool speaks;   // whether this rank reports for the host
  int64_t first; // first rank
  int64_t ranks;
};

// All workers and replicas that are separate worlds keep equal amounts in files: the host's are counted from
// 0.
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

} // namespace trireme::train
