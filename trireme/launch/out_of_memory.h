#pragma once

#include <trireme/launch/place.h>

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trireme::launch {

/// Tells whether a killed process was killed because its control group ran out of memory, by the counter that the kernel keeps for
/// that group: memory.events.local or memory.events (version 2), memory.oom_control (version 1), "oom_kill N". With version 1 the
/// group of a process that has ended is not known any more, and that of this process (the container, the batch job) is looked at.
/// The kernel counts kills, it does not say who was killed: only in a group that the process had for itself is that certain.
class OutOfMemoryWatch {
 public:
  /// Remembers where the counter of this process's own group stands. `cgroups` is where they are mounted.
  explicit OutOfMemoryWatch(std::filesystem::path cgroups = "/sys/fs/cgroup", std::filesystem::path proc = "/proc");

  /// For a process that SIGKILL ended and that has not been reaped. Every count explains the end of one process.
  OutOfMemory killed(pid_t pid);

 private:
  std::optional<std::filesystem::path> counter_file(const std::string& pid, bool lives) const;
  static std::optional<int64_t> count(const std::filesystem::path& file);

  std::filesystem::path cgroups_;
  std::filesystem::path proc_;
  std::optional<std::filesystem::path> own_;
  std::map<std::filesystem::path, int64_t> seen_;
};

} // namespace trireme::launch
