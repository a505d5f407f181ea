#pragma once

#include <trireme/launch/attempt.h>
#include <trireme/launch/host_pool.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme::launch {

/// The hosts and the command of the next attempt.
struct Start {
  /// Empty: there are too few hosts.
  std::vector<Member> members;
  std::string address;
  std::vector<std::string> command;
};

/// Starts all ranks, and again after a failure while options.max_restarts lasts; returns how the last attempt ended. No
/// rank starts while ranks of a lost host may run (lease.h). `pool`: the hosts of `next_start`, nullptr for a job on
/// this machine.
Outcome run_attempts(const Job& job, const std::function<Start()>& next_start, HostPool* pool);

} // namespace trireme::launch
