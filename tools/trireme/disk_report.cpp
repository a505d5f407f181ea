#include "disk_report.h"

#include "offload_check.h"
#include "run_estimate.h"

#include <trireme/base/env.h>
#include <trireme/base/log.h>
#include <trireme/engine/same_options.h>

namespace trireme::tools {

void report_disks(const config::RunConfig& run, comm::World& world, int64_t ranks, bool on_device) {
  if (!run.engine.uses_files() || env::flag("TRIREME_RESTART")) {
    return;
  }
  engine::check_together(world.group(), [&] {
    if (world.local_rank() != 0) {
      return;
    }
    estimate::Run described = describe_run(run, ranks).run;
    described.on_device = on_device;
    for (const std::string& line : look_at_disks(described, world.rank(), world.local_size())) {
      log::info("offload: ", line);
    }
  });
}

} // namespace trireme::tools
