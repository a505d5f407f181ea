#pragma once

#include <trireme/comm/world.h>
#include <trireme/config/run_file.h>

#include <cstdint>

namespace trireme::tools {

/// Before ranks put states or parameters into files: what their disk is capable of, and what a step makes of it, logged once by each host. `ranks` of
/// the run, on devices or on the CPU. Nothing without files, or when the ranks are started again. Collective. Errors: InputError where files have no room.
void report_disks(const config::RunConfig& run, comm::World& world, int64_t ranks, bool on_device);

} // namespace trireme::tools
