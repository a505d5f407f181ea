#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <vector>

namespace trireme::launch {

/// How long to wait for killed processes: SIGKILL does not end one that hangs in the kernel (a dead network disk).
inline constexpr std::chrono::seconds kKillPatience{10};

/// All processes below `ancestor` that still run (no zombies).
/// Cost: one pass over /proc, about 10 us a process on the machine.
std::vector<pid_t> descendants(pid_t ancestor);

/// Kills all descendants, repeatedly, until none is left or kKillPatience is over, and reaps them. Returns the wait
/// status of each child of this process, adopted ones included.
std::map<pid_t, int> kill_children();

/// While it lives, this process and not init adopts orphaned descendants.
class OrphanAdoption {
 public:
  OrphanAdoption();
  ~OrphanAdoption();
  OrphanAdoption(const OrphanAdoption&) = delete;
  OrphanAdoption& operator=(const OrphanAdoption&) = delete;

 private:
  int before_ = 0;
};

} // namespace trireme::launch
