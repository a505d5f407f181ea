#pragma once

#include <trireme/comm/world.h>
#include <trireme/plan/estimate/run.h>

namespace trireme::train {

/// Logs, before ranks put states or parameters into files, the speed of their disk and what it means for a step: once
/// per host, for all its ranks. If workers and replicas are separate worlds, the first of a host does so, and the
/// others do not wait. Does nothing without files, or at a restart. Collective. Errors: InputError if the disk has too
/// little free space.
void report_disks(const estimate::Run& run, comm::World& world);

} // namespace trireme::train
