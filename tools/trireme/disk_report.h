#pragma once

#include <trireme/comm/world.h>
#include <trireme/estimate/run.h>

namespace trireme::tools {

/// Before ranks put states or parameters into files: what their disk is capable of, and what a step makes of it, logged
/// once by each host, for all ranks on it. Of workers and replicas that are worlds of their own the first of a host
/// does so, and the others do not wait for it. Nothing without files, or when the ranks are started again. Collective.
/// Errors: InputError where files have no room.
void report_disks(const estimate::Run& run, comm::World& world);

} // namespace trireme::tools
