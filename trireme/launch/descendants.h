#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <vector>

namespace trireme::launch {

/// SIGKILL does not end a process that hangs in the kernel (a dead network disk): after so long it is given up.
inline constexpr std::chrono::seconds kKillPatience{10};

/// All processes below `ancestor` that still run (no zombies).
/// Cost: one pass over /proc, about 10 us a process on the machine.
std::vector<pid_t> descendants(pid_t ancestor);

/// Kills all processes below this one, again and again until nothing is left or kKillPatience is over, and reaps them.
/// Returns the wait status of each that was a child of this process, also because it had been adopted.
std::map<pid_t, int> kill_children();

/// Makes this process adopt orphans below it while the object lives, so that none escapes to init.
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
