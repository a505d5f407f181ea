#pragma once

#include <trireme/launch/attempt.h>
#include <trireme/launch/host_pool.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme::launch {

/// Where the next attempt starts what.
struct Start {
  /// Empty: there are too few hosts.
  std::vector<Member> members;
  std::string address;
  std::vector<std::string> command;
};

/// Starts all ranks, again after a failure while options.max_restarts lasts, and returns how the last attempt ended.
/// Ranks are not started while others of a
/// lost host may run (lease.h). `pool`: the hosts of `next_start`, nullptr for a job on this machine.
Outcome run_attempts(const Job& job, const std::function<Start()>& next_start, HostPool* pool);

} // namespace trireme::launch
